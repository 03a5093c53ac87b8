package system

import (
	"os/exec"
	"strings"
	"testing"

	"bulkhead/test/system/stage"
	"bulkhead/test/system/throwaway"
)

// What an operator does at a terminal, with a terminal: script(1) is one.
func TestAnOperatorWorksInsideAnAgent(t *testing.T) {
	if _, err := exec.LookPath("script"); err != nil {
		t.Skipf("script(1), which makes a terminal, is not installed: %v", err)
	}
	bin := stage.Build(t)
	throwaway.Run(t, func(t *testing.T, _ *throwaway.Host) {
		c := host(t, bin)
		c.Run(t, "up")
		for _, k := range []struct {
			name, shell string
			want        []string
		}{
			{
				"the terminal's size and the exit code are passed on",
				`script -qec "stty rows 31 cols 91; bulkhead exec writer -- sh -c 'stty size; exit 5'" /dev/null </dev/null; echo "exit $?"`,
				[]string{"31 91", "exit 5"},
			},
			{
				"a terminal without a size gets one",
				`script -qec "bulkhead exec writer -- sh -c 'stty size'" /dev/null </dev/null`,
				[]string{"24 80"},
			},
			{
				"what is typed arrives, by the flags of elsewhere",
				`(sleep 0.3; echo 'echo typed-$((1+1)); exit 6') | script -qec "bulkhead exec -it writer -- sh" /dev/null; echo "exit $?"`,
				[]string{"typed-2", "exit 6"},
			},
			{
				"input and output without a terminal are whole",
				`head -c 5000000 /dev/zero | bulkhead exec writer -- cat | wc -c`,
				[]string{"5000000"},
			},
			{
				"input that never ends does not keep a command that ended",
				`yes | bulkhead exec writer -- head -1; echo "exit $?"`,
				[]string{"y", "exit 0"},
			},
			{
				"an interrupt reaches the command",
				`bulkhead exec writer -- sleep 600 & p=$!; sleep 0.5; kill -INT $p; wait $p; echo "exit $?"`,
				[]string{"exit 130"},
			},
			{
				"a one-off container is another one",
				`bulkhead run writer -- sh -c 'ls /workspace; exit 4'; echo "exit $?"`,
				[]string{"exit 4"},
			},
			{
				"a log is followed over a restart",
				`timeout 5 bulkhead logs writer -f & sleep 0.5; bulkhead restart writer >/dev/null; wait`,
				[]string{"hello from writer", "hello from writer"},
			},
			{
				"a plan names what changes",
				`sed 's/256Mi/300Mi/; s/listed.example:8080/listed.example:8081/' bulkhead.yaml > other.yaml; bulkhead plan -f other.yaml`,
				[]string{"writer    restart  limits.memory: 256Mi -> 300Mi", "egress: + listed.example:8081", "egress: - listed.example:8080"},
			},
		} {
			t.Run(k.name, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), "bash", "-c", "cd /srv/team; PATH=$PATH:"+c.Bin+"; "+k.shell)
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
