"""The guest agent, PID 1 in the sandbox. Standard library and torpor_wire only.

The template builder copies ``torpor_wire`` and ``torpor_guest`` into LIB_DIR and starts ARGV; an optional WARMUP_PATH
is run in the default context before the agent answers its first greeting. SETTINGS_PATH holds the template's variables,
user and folder.
"""

LIB_DIR = "/opt/torpor/lib"
WARMUP_PATH = "/opt/torpor/warmup.py"
SETTINGS_PATH = "/opt/torpor/template.json"

# -I and -S: nothing of the user's (PYTHONPATH, site packages, .pth files) is ever loaded into PID 1.
# -B: no byte code is written, so an idle session's filesystem delta stays empty.
ARGV: tuple[str, ...] = ("/usr/bin/python3", "-I", "-S", "-B", f"{LIB_DIR}/torpor_guest")

AGENT_VERSION = "0.1.0"
