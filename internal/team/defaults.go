package team

import "cmp"

// What every agent gets of the host's disk and network unless the manifest says
// otherwise. The bytes of disks are reserved when an agent is made.
const (
	defaultDisk        = 1 << 30
	bytesPerInode      = 8 << 10 // twice as many files as mkfs.ext4 would allow: package trees are made of small ones
	defaultLogs        = 30 << 20
	defaultConnections = 512
)

// defaults are what every agent starts from. All merging happens here, and
// all values that the file does not name are set here.
type defaults struct {
	engine string
	oci    string
	limits Limits
	egress []listed
	tools  *Tools
}

func (r *reader) defaults(p place) defaults {
	var d defaults
	if p.node == nil {
		return d
	}
	f := r.fields(p, "defaults like {engine: cell, limits: {memory: 512Mi}}", defaultsKeys...)
	d.engine = r.choice(f["engine"], engines...)
	d.oci = r.choice(f["ociRuntime"], ociRuntimes...)
	if f["limits"].node != nil {
		d.limits = r.limits(f["limits"])
	}
	d.egress = r.egress(f["egress"])
	d.tools = r.tools(f["tools"])
	return d
}

// fill sets what the agent left open. Limits that stay zero are the engine's
// default (engine.DefaultLimits, [Limits.WithDefaults]).
func (d defaults) fill(a *Agent) {
	a.Engine = cmp.Or(a.Engine, d.engine, "cell")
	if a.Engine != "cell" {
		a.OCI = cmp.Or(a.OCI, d.oci)
	}
	a.Mode = cmp.Or(a.Mode, ModeService)
	a.Tools = a.Tools.merge(d.tools)
	a.Limits = Limits{
		MemoryBytes: cmp.Or(a.Limits.MemoryBytes, d.limits.MemoryBytes),
		MilliCPU:    cmp.Or(a.Limits.MilliCPU, d.limits.MilliCPU),
		PIDs:        cmp.Or(a.Limits.PIDs, d.limits.PIDs),
		NoFile:      cmp.Or(a.Limits.NoFile, d.limits.NoFile),
		CoreBytes:   cmp.Or(a.Limits.CoreBytes, d.limits.CoreBytes),
		StopGrace:   cmp.Or(a.Limits.StopGrace, d.limits.StopGrace),
		DiskBytes:   cmp.Or(a.Limits.DiskBytes, d.limits.DiskBytes),
		Inodes:      cmp.Or(a.Limits.Inodes, d.limits.Inodes),
		LogBytes:    cmp.Or(a.Limits.LogBytes, d.limits.LogBytes),
		Connections: cmp.Or(a.Limits.Connections, d.limits.Connections),
	}
}
