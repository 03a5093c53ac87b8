package team

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
)

// keyExamples has an example for each key of the manifest whose value is not
// made of further keys. TestTheExamplesOfKeysAreTaken parses them.
var keyExamples = map[string]string{
	"apiVersion":                          "bulkhead/v1",
	"team":                                "pair",
	"orchestrator":                        "writer",
	"upstreamProxy.url":                   "http://proxy.corp.example:3128",
	"upstreamProxy.credentialsFile":       "/etc/bulkhead/proxy.cred",
	"upstreamProxy.except":                `[git.corp.example, "*.lab.corp.example"]`,
	"caFiles":                             "[/etc/ssl/company-ca.pem]",
	"verify.every":                        "10m",
	"verify.onChange":                     "false",
	"verify.onDrift":                      "fence",
	"front.listen":                        "127.0.0.1:8484",
	"front.certFile":                      "/etc/bulkhead/front.crt",
	"front.keyFile":                       "/etc/bulkhead/front.key",
	"front.guests.adminTokenFile":         "/etc/bulkhead/admin.token",
	"front.guests.max":                    "100",
	"front.guests.awake":                  "16",
	"front.guests.idle":                   "5m",
	"front.guests.egress":                 "[api.example.com:443]",
	"front.guests.tools":                  "{allow: [mem], memory: 4Mi, storage: 16Mi}",
	"front.guests.limits.connections":     "16",
	"audit":                               "true",
	"topics.NAME.publish":                 "[writer]",
	"topics.NAME.read":                    "[writer]",
	"topics.NAME.storage":                 "32Mi",
	"defaults.engine":                     "podman",
	"defaults.ociRuntime":                 "crun",
	"defaults.limits":                     "{memory: 512Mi}",
	"defaults.egress":                     "[debian]",
	"defaults.tools":                      "{ratePerMinute: 200}",
	"agents.NAME.role":                    `"Writes the code."`,
	"agents.NAME.image":                   "base",
	"agents.NAME.rootfs":                  "/srv/rootfs",
	"agents.NAME.command":                 `[sh, -c, "exec sleep infinity"]`,
	"agents.NAME.env":                     "{LANG: C.UTF-8}",
	"agents.NAME.mode":                    "session",
	"agents.NAME.terminal":                "true",
	"agents.NAME.workspace":               "./project",
	"agents.NAME.mounts.host":             "/srv/reference",
	"agents.NAME.mounts.path":             "/reference",
	"agents.NAME.ports":                   "[8080]",
	"agents.NAME.egress":                  `[api.example.com:443, "*.example.org:443", {to: legacy.example.com:443, sni: any}]`,
	"agents.NAME.hosts":                   "{api.example.com: 10.1.2.3}",
	"agents.NAME.channels":                "[all-agents]",
	"agents.NAME.messages.to":             "[reviewer]",
	"agents.NAME.messages.critical":       "[escalation]",
	"agents.NAME.messages.maxBytes":       "32Mi",
	"agents.NAME.messages.push.port":      "18789",
	"agents.NAME.messages.push.path":      "/hooks/agent",
	"agents.NAME.messages.push.tokenFile": "/home/agent/.hook-token",
	"agents.NAME.secrets":                 "{API_KEY: op://vault/item/field}",
	"agents.NAME.knowledge":               "./notes",
	"agents.NAME.limits.memory":           "512Mi",
	"agents.NAME.limits.cpu":              "500m",
	"agents.NAME.limits.pids":             "256",
	"agents.NAME.limits.noFile":           "4096",
	"agents.NAME.limits.core":             "64Mi",
	"agents.NAME.limits.disk":             "2Gi",
	"agents.NAME.limits.inodes":           "200000",
	"agents.NAME.limits.logs":             "10Mi",
	"agents.NAME.limits.connections":      "128",
	"agents.NAME.limits.stopGrace":        "30s",
	"agents.NAME.engine":                  "podman",
	"agents.NAME.ociRuntime":              "crun",
	"agents.NAME.tools.allow":             "[mem, events, notify, proc]",
	"agents.NAME.tools.ratePerMinute":     "200",
	"agents.NAME.tools.memory":            "64Mi",
	"agents.NAME.tools.storage":           "128Mi",
	"agents.NAME.tools.webhooks":          "[https://api.example.com/hook]",
	"agents.NAME.tools.code.image":        "toolchain",
	"agents.NAME.tools.code.memory":       "256Mi",
	"agents.NAME.tools.code.pids":         "32",
	"agents.NAME.tools.code.output":       "2Mi",
	"agents.NAME.ask.tools":               "[notify]",
	"agents.NAME.ask.egress":              "[api.example.com:443]",
	"agents.NAME.ask.expire":              "1h",
	"agents.NAME.ask.waiting":             "8",
}

// once are definitions that are described at one place alone.
var once = map[string]string{"docLimits": "agents.NAME.limits", "docTools": "agents.NAME.tools"}

var byDefault = regexp.MustCompile(`; ([^;]+) by default$`)

// keyTable is the table of keys in docs/contracts/manifest.md.
type keyTable struct {
	t    *testing.T
	defs jsonschema.Definitions
	rows strings.Builder
	used []string
}

func (k *keyTable) walk(prefix string, def *jsonschema.Schema) {
	for p := def.Properties.Oldest(); p != nil; p = p.Next() {
		path, s := prefix+p.Key, p.Value
		below, name := s, ""
		switch {
		case s.Type == "array" && s.Items != nil:
			below = s.Items
		case s.AdditionalProperties != nil && s.AdditionalProperties.Ref != "":
			below, name = s.AdditionalProperties, ".NAME"
		}
		word := strings.TrimPrefix(below.Ref, "#/$defs/")
		inner := k.defs[word]
		whole := once[word]
		described := inner != nil && inner.Properties != nil && inner.Properties.Len() > 0 && (whole == "" || whole == path)
		meaning, fallback := s.Description, ""
		if s.Default != nil {
			fallback = fmt.Sprintf("`%v`", s.Default)
		}
		if m := byDefault.FindStringSubmatch(meaning); m != nil {
			meaning, fallback = strings.TrimSuffix(meaning, m[0]), m[1]
			if !strings.Contains(fallback, " ") {
				fallback = "`" + fallback + "`"
			}
		}
		if slices.Contains(def.Required, p.Key) {
			fallback = "needed"
		}
		if whole != "" && whole != path {
			meaning = strings.TrimPrefix(meaning+"; keys as in `"+whole+"`", "; ")
		}
		example := ""
		if !described {
			if example = keyExamples[path]; example == "" {
				k.t.Errorf("keyExamples has nothing for %s", path)
			}
			k.used = append(k.used, path)
			example = "`" + example + "`"
		}
		fmt.Fprintf(&k.rows, "| `%s` | %s | %s | %s | %s |\n", path, k.kind(s), fallback, meaning, example)
		if described {
			k.walk(path+name+".", inner)
		}
	}
}

// kind says in words what a value is.
func (k *keyTable) kind(s *jsonschema.Schema) string {
	word := strings.TrimPrefix(s.Ref, "#/$defs/")
	if w, ok := map[string]string{
		"nameWord": "name", "quantity": "quantity", "port": "port, 1 to 65535", "secret": "`op://` reference", "scalar": "text, number or boolean",
		"addresses": "address, or list of them", "docEgress": "destination", "criticalWord": "critical type",
	}[word]; ok {
		return w
	}
	if len(s.Enum) > 0 {
		var words []string
		for _, e := range s.Enum {
			words = append(words, fmt.Sprintf("`%v`", e))
		}
		return strings.Join(words, ", ")
	}
	switch {
	case s.Type == "array":
		return "list: " + k.kind(s.Items)
	case s.AdditionalProperties != nil && s.Type == "object":
		return "map: name to " + k.kind(s.AdditionalProperties)
	case word != "":
		return "keys below"
	case s.Type == "string":
		return "text"
	case s.Type == "integer" && s.Minimum != "":
		return fmt.Sprintf("number, %s to %s", s.Minimum, s.Maximum)
	}
	return s.Type
}

func TestTheContractListsEveryKey(t *testing.T) {
	const path, begin, end = "../../docs/contracts/manifest.md", "<!-- keys: go test ./internal/team -run ListsEveryKey -update -->\n", "<!-- end -->\n"
	s := (&jsonschema.Reflector{Anonymous: true}).Reflect(document{})
	k := &keyTable{t: t, defs: s.Definitions}
	k.rows.WriteString("| Key | Value | Default | Meaning | Example |\n|---|---|---|---|---|\n")
	k.walk("", s.Definitions["document"])
	for key := range keyExamples {
		if !slices.Contains(k.used, key) {
			t.Errorf("keyExamples has %s, which is no key of the manifest", key)
		}
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	golden(t, path, []byte(before+begin+k.rows.String()+end+after))
}

// Each example is put alone into a manifest that needs little else.
func TestTheExamplesOfKeysAreTaken(t *testing.T) {
	for key, example := range keyExamples {
		if key == "agents.NAME.secrets" || key == "agents.NAME.knowledge" {
			continue // their layers are not built, and the table says so
		}
		t.Run(key, func(t *testing.T) {
			text := manifestWith(key, example)
			if _, err := Parse("bulkhead.yaml", []byte(text)); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		})
	}
}

// needs is what a key can only be beside, below the same parent.
var needs = map[string][]string{
	"upstreamProxy.credentialsFile": {"upstreamProxy.url"}, "upstreamProxy.except": {"upstreamProxy.url"},
	"front.certFile": {"front.listen", "front.keyFile"}, "front.keyFile": {"front.listen", "front.certFile"},
	"front.guests.adminTokenFile": {"front.listen", "front.guests.max", "front.guests.tools"},
	"front.guests.max":            {"front.listen", "front.guests.adminTokenFile", "front.guests.tools"},
	"front.guests.tools":          {"front.listen", "front.guests.adminTokenFile", "front.guests.max"},
	"front.guests.awake":          {"front.listen", "front.guests.adminTokenFile", "front.guests.max", "front.guests.tools"},
	"front.guests.idle":           {"front.listen", "front.guests.adminTokenFile", "front.guests.max", "front.guests.tools"},
	"front.guests.egress":         {"front.listen", "front.guests.adminTokenFile", "front.guests.max", "front.guests.tools"},
	"front.guests.limits.connections": {
		"front.listen", "front.guests.adminTokenFile", "front.guests.max", "front.guests.tools",
	},
	"topics.NAME.publish":                 {"topics.NAME.read", "agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
	"topics.NAME.read":                    {"topics.NAME.publish", "agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
	"topics.NAME.storage":                 {"topics.NAME.publish", "topics.NAME.read", "agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
	"defaults.ociRuntime":                 {"defaults.engine"},
	"agents.NAME.ociRuntime":              {"agents.NAME.engine"},
	"agents.NAME.mounts.host":             {"agents.NAME.mounts.path"},
	"agents.NAME.mounts.path":             {"agents.NAME.mounts.host"},
	"agents.NAME.hosts":                   {"agents.NAME.egress"},
	"agents.NAME.messages.push.path":      {"agents.NAME.messages.push.port"},
	"agents.NAME.messages.push.tokenFile": {"agents.NAME.messages.push.port"},
	"agents.NAME.tools.allow":             {"agents.NAME.tools.code.image"},
	"agents.NAME.tools.webhooks":          {"agents.NAME.egress"},
	"agents.NAME.tools.code.memory":       {"agents.NAME.tools.code.image"},
	"agents.NAME.tools.code.pids":         {"agents.NAME.tools.code.image"},
	"agents.NAME.tools.code.output":       {"agents.NAME.tools.code.image"},
	"agents.NAME.ask.tools":               {"agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
	"agents.NAME.ask.egress":              {"agents.NAME.egress", "agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
	"agents.NAME.ask.expire":              {"agents.NAME.ask.tools", "agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
	"agents.NAME.ask.waiting":             {"agents.NAME.ask.tools", "agents.NAME.tools.allow", "agents.NAME.tools.code.image"},
}

// manifestWith writes the smallest manifest that has the key.
func manifestWith(key, example string) string {
	keys := map[string]string{key: example}
	for _, k := range slices.Concat(needs[key], []string{"apiVersion", "team", "agents.NAME.command"}) {
		keys[k] = keyExamples[k]
	}
	if keys["agents.NAME.rootfs"] == "" {
		keys["agents.NAME.image"] = keyExamples["agents.NAME.image"]
	}
	tree := map[string]any{}
	for k, v := range keys {
		at := tree
		parts := strings.Split(k, ".")
		for _, p := range parts[:len(parts)-1] {
			if at[p] == nil {
				at[p] = map[string]any{}
			}
			at = at[p].(map[string]any)
		}
		at[parts[len(parts)-1]] = v
	}
	return flow(tree, "") + "\n"
}

// flow writes a tree as one YAML value. Names stand for themselves: the agent is
// the writer, who has a reviewer beside it; mounts are a list of one.
func flow(v any, key string) string {
	m, ok := v.(map[string]any)
	if !ok {
		return v.(string)
	}
	var parts []string
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}) {
		name := k
		switch {
		case k == "NAME" && key == "agents":
			name = "writer"
			parts = append(parts, "reviewer: {image: base, mode: session}")
		case k == "NAME":
			name = "builds"
		}
		parts = append(parts, name+": "+flow(m[k], k))
	}
	out := "{" + strings.Join(parts, ", ") + "}"
	if key == "mounts" {
		return "[" + out + "]"
	}
	return out
}
