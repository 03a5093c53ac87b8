package team

// The keys of the manifest, and the words that some of them take. The JSON
// Schema (docs/bulkhead.schema.json) has exactly these; a test compares them.
var (
	topKeys      = []string{"apiVersion", "team", "defaults", "agents"}
	defaultsKeys = []string{"engine", "ociRuntime", "limits", "egress"}
	agentKeys    = []string{
		"role", "image", "rootfs", "command", "env", "mode", "workspace", "mounts", "ports", "egress", "hosts",
		"channels", "secrets", "knowledge", "limits", "engine", "ociRuntime",
	}
	limitKeys  = []string{"memory", "cpu", "pids", "noFile", "core", "disk", "inodes", "logs", "connections", "stopGrace"}
	mountKeys  = []string{"host", "path"}
	egressKeys = []string{"to", "sni"}

	engines     = []string{"cell", "podman"}
	ociRuntimes = []string{"runc", "crun", "runsc", "krun"}
	modes       = []string{string(ModeService), string(ModeSession), string(ModeTask)}
	sniModes    = []string{string(SNIExact), string(SNIAny)}
)
