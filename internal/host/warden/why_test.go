package warden

import (
	"strings"
	"testing"

	"bulkhead/internal/deny"
	"bulkhead/internal/host"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
	"bulkhead/internal/wire"
)

const whyTeam = `apiVersion: bulkhead/v1
team: pair
topics:
  builds: {publish: [writer], read: [reviewer]}
  chat: {publish: [writer, reviewer], read: [writer, reviewer]}
agents:
  writer: {image: base, mode: session, channels: [all], messages: {to: [reviewer], critical: [escalation]}, env: {TOKEN: x}, limits: {memory: 64Mi}, tools: {allow: [events, mem, fs_read, net_http_post]}, ask: {tools: [mem_get, net_http_post]}}
  reviewer: {image: base, mode: session, channels: [product], tools: {allow: [events_publish]}}
`

func TestWhyAnswersForMessagesSecretsAndLimits(t *testing.T) {
	m, err := team.Parse("bulkhead.yaml", []byte(whyTeam))
	if err != nil {
		t.Fatal(err)
	}
	h := layout.Default()
	w := &Warden{host: h, teams: map[string]*teamRun{"pair": {name: "pair", manifest: m}}}
	a := &agentRun{w: w, Agent: host.Agent{Place: h.Agent("pair", "writer"), Want: m.Agent("writer"), Messages: true}}
	for _, tc := range []struct {
		what, verdict string
		layer         deny.Layer
		text          string
	}{
		{"message:reviewer", wire.WhyAllowed, deny.LayerMessages, "agents.writer.messages.to names reviewer"},
		{"message:reviewer/escalation", wire.WhyAllowed, deny.LayerMessages, "critical names escalation"},
		{"message:reviewer/policy_update", wire.WhyDenied, deny.LayerMessages, "add policy_update to agents.writer.messages.critical"},
		{"message:writer", wire.WhyDenied, deny.LayerMessages, "add writer to agents.writer.messages.to"},
		{"message:all", wire.WhyAllowed, deny.LayerMessages, "member of the channel all"},
		{"message:product", wire.WhyDenied, deny.LayerMessages, "add product to agents.writer.channels"},
		{"topic:builds", wire.WhyDepends, deny.LayerTools, "topics.builds.read of the manifest does not name writer"},
		{"topic:builds/publish", wire.WhyAllowed, deny.LayerTools, "topics.builds.publish names writer"},
		{"topic:public/builds/read", wire.WhyDenied, deny.LayerTools, "add writer to topics.builds.read"},
		{"topic:chat", wire.WhyAllowed, deny.LayerTools, "bounded by 1000 messages"},
		{"topic:none", wire.WhyDenied, deny.LayerTools, "add writer to topics.none.read"},
		{"tool:mem_get", wire.WhyDepends, deny.LayerTools, "agents.writer.ask.tools has each call of mem_get wait for a person (24h0m0s, 16 at a time)"},
		{"tool:net_http_post", wire.WhyDepends, deny.LayerTools, "its proxy reaches the destinations of egress without asking"},
		{"tool:net_http_get", wire.WhyDenied, deny.LayerTools, "does not give it net_http_get"},
		{"tool:execution_list", wire.WhyAllowed, deny.LayerTools, "gives it execution_list"},
		{"tool:mem_set", wire.WhyAllowed, deny.LayerTools, "100 calls a minute"},
		{"tool:agentos.mem_set", wire.WhyAllowed, deny.LayerTools, "gives it mem_set"},
		{"tool:mem", wire.WhyDepends, deny.LayerTools, "wait for a person"},
		{"tool:fs_read", wire.WhyAllowed, deny.LayerTools, "gives it fs_read"},
		{"tool:fs_write", wire.WhyDenied, deny.LayerTools, `add "fs" to agents.writer.tools.allow`},
		{"tool:fs", wire.WhyDepends, deny.LayerTools, "only fs_read"},
		{"tool:proc_execute", wire.WhyDenied, deny.LayerTools, "tools.code.image"},
		{"tool:msg_send", wire.WhyAllowed, deny.LayerTools, "message:AGENT"},
		{"secret:TOKEN", wire.WhyAllowed, deny.LayerPod, "plain variable"},
		{"secret:OTHER", wire.WhyDenied, deny.LayerVault, "bulkhead ws push writer"},
		{"limit:memory", wire.WhyDepends, deny.LayerPod, "67108864 bytes"},
		{"limit:disk", wire.WhyDepends, deny.LayerQuota, "agents.writer.limits.disk"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			word, rest, ok := worded(tc.what)
			if !ok {
				t.Fatal("it is not taken for a question with a word before it")
			}
			var res wire.WhyResult
			if err := a.whyOther(&res, word, rest); err != nil {
				t.Fatal(err)
			}
			if res.Verdict != tc.verdict || res.Layer != tc.layer || !strings.Contains(res.Rule+" "+res.Mend, tc.text) {
				t.Errorf("%+v", res)
			}
		})
	}
	for _, none := range []string{"tool:", "tool:mem_nothing", "tool:db2"} {
		word, rest, _ := worded(none)
		if err := a.whyOther(&wire.WhyResult{}, word, rest); err == nil {
			t.Errorf("%s is answered", none)
		}
	}
	for _, other := range []string{"message:443", "api.example.com:443", "/message:x", "message", "other:thing"} {
		if _, _, ok := worded(other); ok {
			t.Errorf("%s is taken for a question with a word before it", other)
		}
	}
}
