package launcher

import "time"

// interpreter is how code of one language is run: by a program that is started
// before the code is known, reads it whole from descriptor 0, puts /dev/null
// there, and runs it. So most of a start has happened when the code comes, and
// code stands neither in arguments nor in a file that others could see.
type interpreter struct {
	command []string
	warm    int // how many are kept started
}

// warmTime is how long interpreters of a language wait without being used.
const warmTime = 5 * time.Minute

// interpreters by language (wire.CodeLanguages). None reads settings of HOME or
// the environment.
var interpreters = map[string]interpreter{
	// -I: no PYTHON* variables, no user site, no current folder among modules.
	// -u: what was printed before a kill is not lost.
	"python": {command: []string{"python3", "-I", "-u", "-c", pythonBoot}, warm: 2},
	// A script of stdin's is read whole before it runs; what it reads from stdin
	// is then at its end.
	"javascript": {command: []string{"node", "-e", nodeBoot}, warm: 1},
	"bash":       {command: []string{"bash", "--noprofile", "--norc", "-c", bashBoot}, warm: 1},
}

// Tracebacks have the lines of the code, and none of these.
const pythonBoot = `def _boot():
    import os, sys
    raw = b"".join(iter(lambda: os.read(0, 65536), b""))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    text = raw.decode("utf-8")
    def hook(kind, value, at):
        import linecache, traceback
        linecache.cache["<code>"] = (len(text), None, text.splitlines(True), "<code>")
        traceback.print_exception(kind, value, at and at.tb_next)
    sys.excepthook = hook
    return compile(text, "<code>", "exec")
exec((_boot(), globals().pop("_boot"))[0])
`

// An indirect eval would lack require, a file would need a place to write: the
// module system compiles a string as a file that does not exist.
const nodeBoot = `const fs = require("node:fs");
const text = fs.readFileSync(0, "utf8");
fs.closeSync(0); fs.openSync("/dev/null", "r");
const Module = require("node:module");
const m = new Module("/tmp/code", null);
m.filename = "/tmp/code"; m.paths = Module._nodeModulePaths("/tmp");
process.mainModule = m; require.main = m;
m._compile(text, "/tmp/code");
`

const bashBoot = `_code=$(</dev/stdin) || exit 126
exec </dev/null
eval "unset _code
$_code"
`
