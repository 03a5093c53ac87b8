package team

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
)

// The document as editors see it. These types exist for the schema alone: the
// parser reads the YAML tree itself, because it owes a place to every fault.
type (
	document struct {
		APIVersion   string              `json:"apiVersion" jsonschema:"enum=bulkhead/v1,description=Version of the manifest"`
		Team         nameWord            `json:"team" jsonschema:"description=The team's name; accounts are called bh-TEAM-AGENT"`
		Orchestrator nameWord            `json:"orchestrator,omitempty" jsonschema:"description=The agent that is alerted of dead letters; default: the agent of that name"`
		Upstream     *docUpstream        `json:"upstreamProxy,omitempty" jsonschema:"description=The forward proxy through which alone this host reaches outside"`
		CAFiles      []string            `json:"caFiles,omitempty" jsonschema:"description=Absolute paths of PEM files of root's with more certificate authorities for every agent"`
		Verify       *docVerify          `json:"verify,omitempty" jsonschema:"description=How the running team is checked again"`
		Front        *docFront           `json:"front,omitempty" jsonschema:"description=Lets programs of this host in that are not agents and show a token"`
		Audit        bool                `json:"audit,omitempty" jsonschema:"description=Keep what tools did in a log that no agent can change"`
		Topics       map[string]docTopic `json:"topics,omitempty" jsonschema:"description=Public topics of the team by name: agents publish to and read public/NAME"`
		Defaults     *docDefaults        `json:"defaults,omitempty" jsonschema:"description=What every agent starts from"`
		Agents       map[string]docAgent `json:"agents" jsonschema:"description=The agents by name"`
	}
	docVerify struct {
		Every    string `json:"every,omitempty" jsonschema:"default=1h,description=A time like 1h from 1m to 168h; or never"`
		OnChange bool   `json:"onChange,omitempty" jsonschema:"default=true,description=After every up and when the host's network changed"`
		OnDrift  string `json:"onDrift,omitempty" jsonschema:"enum=alert,enum=fence,default=alert,description=What happens when something does not hold any more"`
	}
	docFront struct {
		Listen string     `json:"listen" jsonschema:"description=A loopback address and port of this host: 127.0.0.1:8484"`
		Cert   string     `json:"certFile,omitempty" jsonschema:"description=Absolute path of a PEM file of root's; with keyFile: TLS"`
		Key    string     `json:"keyFile,omitempty" jsonschema:"description=Absolute path of a PEM file of root's with mode 0600"`
		Guests *docGuests `json:"guests,omitempty" jsonschema:"description=Agents without a runtime that are made over POST /admin/agents; this is their ceiling; without it there are none"`
	}
	docGuests struct {
		Token  string         `json:"adminTokenFile" jsonschema:"description=Absolute path of a file of root's with mode 0600: at least 64 random bytes in hex or base64"`
		Max    int            `json:"max" jsonschema:"minimum=1,maximum=4096,description=How many there may be"`
		Awake  int            `json:"awake,omitempty" jsonschema:"minimum=1,maximum=256,default=32,description=How many gateways of them run at a time"`
		Idle   string         `json:"idle,omitempty" jsonschema:"default=2m,description=A time like 2m from 5s to 24h after which an idle gateway stops"`
		Egress []docEgress    `json:"egress,omitempty" jsonschema:"description=What any of them may be given"`
		Tools  docTools       `json:"tools" jsonschema:"description=What any of them may be given; allow and memory and storage are needed; proc is not"`
		Limits *docGuestLimit `json:"limits,omitempty"`
	}
	docGuestLimit struct {
		Conns int `json:"connections,omitempty" jsonschema:"minimum=1,maximum=512,default=512,description=Connections open at a time"`
	}
	docTopic struct {
		Publish []nameWord `json:"publish,omitempty" jsonschema:"description=The agents that may publish to it"`
		Read    []nameWord `json:"read,omitempty" jsonschema:"description=The agents that may read it"`
		Storage quantity   `json:"storage,omitempty" jsonschema:"description=Bytes that the messages of each publisher may take in it; 64Ki to 1Gi; 16Mi by default"`
	}
	docUpstream struct {
		URL         string   `json:"url" jsonschema:"description=http://host:port"`
		Credentials string   `json:"credentialsFile,omitempty" jsonschema:"description=Absolute path of a file of root's with mode 0600 that holds user:password"`
		Except      []string `json:"except,omitempty" jsonschema:"description=Names and *.suffix that are reached without the proxy"`
	}
	docDefaults struct {
		Engine string      `json:"engine,omitempty" jsonschema:"enum=cell,enum=podman"`
		OCI    string      `json:"ociRuntime,omitempty" jsonschema:"enum=runc,enum=crun,enum=runsc,enum=krun"`
		Limits *docLimits  `json:"limits,omitempty"`
		Egress []docEgress `json:"egress,omitempty" jsonschema:"description=Added to every agent's own"`
		Tools  *docTools   `json:"tools,omitempty" jsonschema:"description=The tools of every agent; its own win key by key"`
	}
	docAgent struct {
		Role      string               `json:"role,omitempty" jsonschema:"description=What the agent is for"`
		Image     string               `json:"image,omitempty" jsonschema:"description=A name in the image store; either image or rootfs"`
		Rootfs    string               `json:"rootfs,omitempty" jsonschema:"description=An absolute folder of the host; either image or rootfs"`
		Command   []scalar             `json:"command,omitempty" jsonschema:"description=The program and its words; needed unless the mode is session,minItems=1"`
		Env       map[string]scalar    `json:"env,omitempty" jsonschema:"description=Plain variables; never secrets"`
		Mode      string               `json:"mode,omitempty" jsonschema:"enum=service,enum=session,enum=task,default=service,description=service: restarted when it ends; session: you start it; task: it runs once"`
		Terminal  bool                 `json:"terminal,omitempty" jsonschema:"default=false,description=Its command has a terminal that operators attach to; a session's always has"`
		Workspace string               `json:"workspace,omitempty" jsonschema:"description=A folder to begin with relative to the manifest; or https://HOST/REPOSITORY#BRANCH which is cloned"`
		Mounts    []docMount           `json:"mounts,omitempty" jsonschema:"description=Read-only folders or files of the host"`
		Ports     []port               `json:"ports,omitempty" jsonschema:"description=TCP ports that the agent listens on"`
		Egress    []docEgress          `json:"egress,omitempty" jsonschema:"description=The only destinations that exist for the agent"`
		Hosts     map[string]addresses `json:"hosts,omitempty" jsonschema:"description=Fixed addresses of listed names; instead of DNS"`
		Channels  []nameWord           `json:"channels,omitempty" jsonschema:"description=Message channels"`
		Messages  *docMessages         `json:"messages,omitempty" jsonschema:"description=What the agent may say to others beside its channels"`
		Secrets   map[string]secret    `json:"secrets,omitempty" jsonschema:"description=References to secrets (designed and not built: refused)"`
		Knowledge string               `json:"knowledge,omitempty" jsonschema:"description=A folder of Markdown notes; relative to the manifest (designed and not built: refused)"`
		Limits    *docLimits           `json:"limits,omitempty"`
		Engine    string               `json:"engine,omitempty" jsonschema:"enum=cell,enum=podman,default=cell,description=What makes its containers"`
		OCI       string               `json:"ociRuntime,omitempty" jsonschema:"enum=runc,enum=crun,enum=runsc,enum=krun,description=With engine podman only"`
		Tools     *docTools            `json:"tools,omitempty" jsonschema:"description=What the agent's gateway serves it beside messages"`
		Ask       *docAsk              `json:"ask,omitempty" jsonschema:"description=Which calls of its tools a person approves first"`
	}
	docTools struct {
		Allow    []string `json:"allow,omitempty" jsonschema:"description=Groups (mem vec fs db net events proc notify execution) and tools by name; every group but proc and execution by default"`
		Rate     int      `json:"ratePerMinute,omitempty" jsonschema:"minimum=1,maximum=100000,default=100,description=Calls over all tools"`
		Memory   quantity `json:"memory,omitempty" jsonschema:"description=Bytes of mem and vec and events; 100Mi by default"`
		Storage  quantity `json:"storage,omitempty" jsonschema:"description=Bytes of fs and db; 256Mi by default"`
		Webhooks []string `json:"webhooks,omitempty" jsonschema:"description=https URLs to which notify_send may post; their hosts must be in egress"`
		Code     *docCode `json:"code,omitempty" jsonschema:"description=What proc needs"`
	}
	docAsk struct {
		Tools   []string `json:"tools,omitempty" jsonschema:"minItems=1,description=Groups and tools by name that the agent may call; not those of msg and execution"`
		Egress  []string `json:"egress,omitempty" jsonschema:"minItems=1,description=Destinations of egress that a person approves before they are reached; host:port or a host for all of its ports there"`
		Expire  string   `json:"expire,omitempty" jsonschema:"default=24h,description=A time like 24h from 1m to 720h after which a call that nobody approved is not done"`
		Waiting int      `json:"waiting,omitempty" jsonschema:"minimum=1,maximum=64,default=16,description=Calls that wait at a time"`
	}
	docCode struct {
		Image  string   `json:"image" jsonschema:"description=A name in the image store; what code runs in"`
		Memory quantity `json:"memory,omitempty" jsonschema:"description=Bytes of one piece of code; 512Mi by default"`
		PIDs   int      `json:"pids,omitempty" jsonschema:"minimum=8,maximum=32768,default=64,description=Its processes and threads"`
		Output quantity `json:"output,omitempty" jsonschema:"description=Bytes that are kept of its stdout and of its stderr; 1Ki to 8Mi; 1Mi by default"`
	}
	docLimits struct {
		Memory    quantity `json:"memory,omitempty" jsonschema:"description=Bytes of memory; 16Mi to 1Ti; 1Gi by default"`
		CPU       quantity `json:"cpu,omitempty" jsonschema:"description=Cores; 10m to 1024; 1 by default"`
		PIDs      int      `json:"pids,omitempty" jsonschema:"minimum=8,maximum=32768,default=512,description=Processes and threads"`
		NoFile    int      `json:"noFile,omitempty" jsonschema:"minimum=64,maximum=1048576,default=1024,description=Open files of one process"`
		Core      quantity `json:"core,omitempty" jsonschema:"description=Bytes of a core file; to 1Ti; 0 by default"`
		Disk      quantity `json:"disk,omitempty" jsonschema:"description=Bytes of the file system that HOME and workspace lie on; reserved on the host; 16Mi to 16Ti; 1Gi by default"`
		Inodes    int      `json:"inodes,omitempty" jsonschema:"minimum=64,maximum=2147483648,description=Files and folders on it; one for 8Ki of disk by default"`
		Logs      quantity `json:"logs,omitempty" jsonschema:"description=Bytes of what the agent printed: all files together; 192Ki to 1Ti; 30Mi by default"`
		Conns     int      `json:"connections,omitempty" jsonschema:"minimum=1,maximum=1536,default=512,description=Connections open at a time"`
		StopGrace string   `json:"stopGrace,omitempty" jsonschema:"description=A time from 0s to 10m for the command to end before it is killed; 5s by default"`
	}
	docMessages struct {
		To       []nameWord     `json:"to,omitempty" jsonschema:"description=Agents that it may write to directly; one-way"`
		Critical []criticalWord `json:"critical,omitempty" jsonschema:"description=Critical types that it may send"`
		MaxBytes quantity       `json:"maxBytes,omitempty" jsonschema:"description=Bytes of it in queues and dead letters; 2Mi to 64Gi; 64Mi by default"`
		Push     *docPush       `json:"push,omitempty" jsonschema:"description=Deliver by POST into the runtime"`
	}
	docPush struct {
		Port      port   `json:"port" jsonschema:"description=On the runtime's loopback"`
		Path      string `json:"path,omitempty" jsonschema:"description=Of the request,default=/hooks/agent"`
		TokenFile string `json:"tokenFile,omitempty" jsonschema:"description=Absolute path inside"`
	}
	docMount struct {
		Host string `json:"host" jsonschema:"description=Absolute path on the host"`
		Path string `json:"path" jsonschema:"description=Absolute path inside"`
	}
	docTo struct {
		To  string `json:"to" jsonschema:"description=host:port"`
		SNI string `json:"sni,omitempty" jsonschema:"enum=exact,enum=any,default=exact,description=Whether the TLS server name and Host must match"`
	}

	scalar       struct{}
	quantity     struct{}
	nameWord     struct{}
	criticalWord struct{}
	port         struct{}
	secret       struct{}
	addresses    struct{}
	docEgress    struct{}
)

func types(names ...string) []*jsonschema.Schema {
	out := make([]*jsonschema.Schema, len(names))
	for i, n := range names {
		out[i] = &jsonschema.Schema{Type: n}
	}
	return out
}

func (scalar) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: types("string", "number", "boolean")}
}

func (quantity) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: types("string", "number")}
}

func (nameWord) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: name().String()}
}

func (criticalWord) JSONSchema() *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, w := range criticalTypes {
		s.Enum = append(s.Enum, w)
	}
	return s
}

func (port) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "integer", Minimum: "1", Maximum: "65535"}
}

func (secret) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: reference().String()}
}

func (addresses) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "string"}, {Type: "array", Items: &jsonschema.Schema{Type: "string"}}}}
}

func (docEgress) JSONSchema() *jsonschema.Schema {
	to := (&jsonschema.Reflector{ExpandedStruct: true, Anonymous: true}).Reflect(docTo{})
	to.Version = ""
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
		{Type: "string", Description: "host:port, *.suffix:port, host:PORT for one loopback service of the host, address:port, or a preset: npm, pypi, go, debian, github"}, to,
	}}
}

func TestSchemaIsTheOneThatIsPublished(t *testing.T) {
	r := &jsonschema.Reflector{Anonymous: true}
	s := r.Reflect(document{})
	s.ID = "https://bulkhead.invalid/bulkhead.schema.json"
	s.Title = "Bulkhead manifest"
	s.Description = "A team of agents. `bulkhead plan` checks more than a schema can say."
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../docs/bulkhead.schema.json", append(raw, '\n'))
}

func TestSchemaHasExactlyTheKeysAndWordsOfTheParser(t *testing.T) {
	for _, c := range []struct {
		what any
		keys []string
	}{
		{document{}, topKeys},
		{docDefaults{}, defaultsKeys},
		{docUpstream{}, upstreamKeys},
		{docFront{}, frontKeys},
		{docGuests{}, guestsKeys},
		{docTopic{}, topicKeys},
		{docGuestLimit{}, guestLimitKeys},
		{docAgent{}, agentKeys},
		{docLimits{}, limitKeys},
		{docMount{}, mountKeys},
		{docTo{}, egressKeys},
		{docMessages{}, messageKeys},
		{docPush{}, pushKeys},
		{docTools{}, toolsKeys},
		{docCode{}, codeKeys},
		{docAsk{}, askKeys},
	} {
		typ := reflect.TypeOf(c.what)
		var got []string
		for i := range typ.NumField() {
			f := typ.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			got = append(got, key)
			var enum []string
			for _, part := range strings.Split(f.Tag.Get("jsonschema"), ",") {
				if word, ok := strings.CutPrefix(part, "enum="); ok {
					enum = append(enum, word)
				}
			}
			want := map[string][]string{"engine": engines, "ociRuntime": ociRuntimes, "mode": modes, "sni": sniModes, "apiVersion": {APIVersion}}[key]
			if !slices.Equal(enum, want) {
				t.Errorf("%s.%s: words %v, the parser takes %v", typ.Name(), key, enum, want)
			}
		}
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(c.keys))) {
			t.Errorf("%s has %v, the parser %v", typ.Name(), got, c.keys)
		}
	}
}
