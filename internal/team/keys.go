package team

// The keys of the manifest, and the words that some of them take. The JSON
// Schema (docs/bulkhead.schema.json) has exactly these; a test compares them.
var (
	topKeys      = []string{"apiVersion", "team", "orchestrator", "upstreamProxy", "caFiles", "verify", "front", "audit", "topics", "defaults", "agents"}
	verifyKeys   = []string{"every", "onChange", "onDrift"}
	frontKeys    = []string{"listen", "certFile", "keyFile", "guests"}
	guestsKeys   = []string{"adminTokenFile", "max", "awake", "idle", "egress", "tools", "limits"}
	upstreamKeys = []string{"url", "credentialsFile", "except"}
	defaultsKeys = []string{"engine", "ociRuntime", "limits", "egress", "tools"}
	agentKeys    = []string{
		"role", "image", "rootfs", "command", "env", "mode", "terminal", "workspace", "mounts", "ports", "egress", "hosts",
		"channels", "messages", "secrets", "knowledge", "limits", "engine", "ociRuntime", "tools", "ask",
	}
	topicKeys  = []string{"publish", "read", "storage"}
	limitKeys  = []string{"memory", "cpu", "pids", "noFile", "core", "disk", "inodes", "logs", "connections", "stopGrace"}
	mountKeys  = []string{"host", "path"}
	egressKeys = []string{"to", "sni"}

	messageKeys = []string{"to", "critical", "maxBytes", "push"}
	pushKeys    = []string{"port", "path", "tokenFile"}

	guestKeys      = []string{"name", "egress", "tools", "limits", "expiresIn", "newToken"} // of a request
	guestLimitKeys = []string{"connections"}

	toolsKeys = []string{"allow", "ratePerMinute", "memory", "storage", "webhooks", "code"}
	codeKeys  = []string{"image", "memory", "pids", "output"}

	askKeys = []string{"tools", "egress", "expire", "waiting"}

	truths      = []string{"true", "false"}
	drifts      = []string{DriftAlert, DriftFence}
	engines     = []string{"cell", "podman"}
	ociRuntimes = []string{"runc", "crun", "runsc", "krun"}
	modes       = []string{string(ModeService), string(ModeSession), string(ModeTask)}
	sniModes    = []string{string(SNIExact), string(SNIAny)}
)
