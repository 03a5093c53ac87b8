package system

import (
	"os/exec"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/test/system/stage"
)

// consoles is a team of a service with a terminal, a session with a command,
// and a service without a terminal.
const consoles = `
apiVersion: bulkhead/v1
team: pair
defaults:
  limits: {memory: 128Mi, pids: 64, disk: 16Mi}
agents:
  service:
    rootfs: /srv/rootfs
    terminal: true
    command: [sh, -c, 'echo begun; n=0; while read -r line; do n=$((n+1)); case $line in size) stty size;; end) exit 7;; *) echo "line $n is $line";; esac; done']
  session:
    rootfs: /srv/rootfs
    mode: session
    command: [sh]
  plain:
    rootfs: /srv/rootfs
    command: [sleep, "600"]
`

// shellOfAttach lets a script join an agent's terminal, type, wait for what is
// to be seen, and leave.
const shellOfAttach = `
seen() { for i in $(seq 400); do grep -q "$2" "/tmp/$1" && return; sleep 0.05; done; echo "never saw $2"; }
join() { rm -f "/tmp/$1" "/tmp/$1.in"; mkfifo "/tmp/$1.in"; bulkhead attach "$2" < "/tmp/$1.in" > "/tmp/$1" 2>&1 & eval "pid_$1=$!"; eval "exec {fd_$1}> /tmp/$1.in"; }
type() { eval "echo \"\$2\" >&\$fd_$1"; }
over() { eval "wait \$pid_$1"; echo "exit $?" >> "/tmp/$1"; cat "/tmp/$1"; }
leave() { eval "kill -INT \$pid_$1"; over "$1"; }
`

// An operator joins the terminal of a command, leaves it, and comes back.
func TestAnOperatorAttaches(t *testing.T) {
	eachEngine(t, func(t *testing.T, kind engine.Kind, c stage.CLI) {
		write(t, c.Dir, strings.Replace(consoles, "defaults:\n", "defaults:\n  engine: "+string(kind)+"\n", 1))
		c.Run(t, "up")
		for _, k := range []struct {
			name, shell string
			want        []string
		}{
			{
				"what is typed arrives, and the command outlives who leaves",
				`join a service; type a hello; seen a "line 1 is hello"; leave a`,
				[]string{"line 1 is hello", "goes on", "exit 0"},
			},
			{
				"the keys leave it, and it has the terminal's size",
				`(seen o Attached; printf 'size\r'; seen o "31 91"; printf '\020\021'; seen o "goes on") | script -qec "stty rows 31 cols 91; bulkhead attach service" /dev/null > /tmp/o; echo "exit $?"; cat /tmp/o`,
				[]string{"exit 0", "Attached to service", "31 91", "goes on"},
			},
			{
				"two see the same",
				`join a service; join b service; type b first; seen b "line 3 is first"; type a both; seen a "line 4 is both"; seen b "line 4 is both"; leave a; leave b`,
				[]string{"line 4 is both", "exit 0", "line 4 is both", "exit 0"},
			},
			{
				"its log has what it wrote",
				`bulkhead logs service`,
				[]string{"begun", "line 1 is hello", "line 4 is both"},
			},
			{
				"the command's exit code is passed on, and a service starts anew",
				`join a service; type a end; over a; for i in $(seq 400); do [ "$(bulkhead logs service | grep -c begun)" = 2 ] && break; sleep 0.05; done; bulkhead logs service | grep -c begun`,
				[]string{"exit 7", "2"},
			},
			{
				"a session's command is started by the first and kept for the next",
				`join a session; type a 'kept=yes; echo set-$kept'; seen a set-yes; leave a; join b session; type b 'echo "kept is $kept"; exit 3'; over b`,
				[]string{"set-yes", "exit 0", "kept is yes", "exit 3"},
			},
			{
				"a session that ended can be started again",
				`join a session; type a 'echo again-$((1+1)); exit 4'; over a; bulkhead exec session -- echo "goes on"`,
				[]string{"again-2", "exit 4", "goes on"},
			},
			{
				"a command without a terminal",
				`bulkhead attach plain; echo "exit $?"`,
				[]string{"its command has no terminal", "terminal: true", "exit 1"},
			},
			{
				"an agent that is stopped, and one that nobody knows",
				`bulkhead stop plain > /dev/null; bulkhead attach plain; echo "exit $?"; bulkhead attach nobody; echo "exit $?"`,
				[]string{"does not run", "bulkhead restart plain", "exit 1", "nobody", "exit 2"},
			},
			{
				"who is attached learns that the agent was stopped",
				`join a service; type a hi; seen a "is hi"; bulkhead stop service > /dev/null; over a`,
				[]string{"exit "},
			},
		} {
			t.Run(k.name, func(t *testing.T) {
				if strings.Contains(k.shell, "script ") {
					if _, err := exec.LookPath("script"); err != nil {
						t.Skipf("script(1), which makes a terminal, is not installed: %v", err)
					}
				}
				cmd := exec.CommandContext(t.Context(), "bash", "-c", "cd /srv/team; PATH=$PATH:"+c.Bin+shellOfAttach+k.shell)
				raw, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v", err)
				}
				rest := string(raw)
				for _, w := range k.want {
					_, after, found := strings.Cut(rest, w)
					if !found {
						t.Fatalf("%q is not there, in its order:\n%s", w, raw)
					}
					rest = after
				}
			})
		}
		c.Run(t, "down", "--purge")
	})
}
