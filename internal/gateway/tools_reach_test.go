package gateway

import (
	"strings"
	"testing"

	"bulkhead/internal/team"
)

// What the tools of net and proc reach is tested with them; here, that a
// gateway hands them its own guard and nothing else.
func TestNetToolsGoByTheGatewaysGuardAndCodeByItsLauncher(t *testing.T) {
	c, _, _ := startTools(t, "writer", &team.Tools{Allow: []string{"net", "proc"}, CodeImage: "toolchain"})
	for _, one := range []struct {
		name, input string
		status      int
		want        string
	}{
		{"net_http_get", `{"url":"https://evil.example/"}`, 403, "egress.not_listed"},
		{"net_dns_resolve", `{"hostname":"evil.example"}`, 403, "egress.not_listed"},
		{"net_http_post", `{"url":"https://user@evil.example/","headers":{"Host":"x"}}`, 400, "headers.Host"},
		{"proc_execute", `{"language":"python","code":"print(1)"}`, 503, "launcher does not answer"}, // it has none here
		{"proc_execute", `{"language":"python","code":"print(1)","image":"x"}`, 400, "image"},
		{"proc_schedule", `{"expression":"0 0 30 2 *","tool":"net_http_get"}`, 400, "expression"},
		{"proc_schedule", `{"expression":"@daily","tool":"net_http_get","input":{"url":"https://evil.example/"}}`, 200, `"taskId"`},
		{"proc_schedule", `{"action":"list"}`, 200, "net_http_get"},
	} {
		if status, body := c.call(one.name, one.input); status != one.status || !strings.Contains(body, one.want) {
			t.Errorf("%s %s: %d %.400s, want %d with %s", one.name, one.input, status, body, one.status, one.want)
		}
	}
}
