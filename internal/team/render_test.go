package team

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// rendered writes a manifest out in full. JSON is YAML, so Parse reads it.
func rendered(m *Manifest) []byte {
	type object = map[string]any
	agents := object{}
	// Agents keep the order of the file; a JSON object is sorted, so the test
	// writes the object by hand.
	var order []string
	for _, a := range m.Agents {
		o := object{"mode": a.Mode, "engine": a.Engine}
		set := func(key string, value any, present bool) {
			if present {
				o[key] = value
			}
		}
		set("role", a.Role, a.Role != "")
		set("image", a.Image, a.Image != "")
		set("rootfs", a.Rootfs, a.Rootfs != "")
		set("command", a.Command, len(a.Command) > 0)
		set("env", a.Env, len(a.Env) > 0)
		set("terminal", a.Terminal, a.Terminal)
		set("workspace", a.Workspace, a.Workspace != "")
		set("knowledge", a.Knowledge, a.Knowledge != "")
		set("ports", a.Ports, len(a.Ports) > 0)
		set("channels", a.Channels, len(a.Channels) > 0)
		set("messages", renderedMessages(a.Messages), a.Messages != nil)
		set("secrets", a.Secrets, len(a.Secrets) > 0)
		set("hosts", a.Hosts, len(a.Hosts) > 0)
		set("tools", renderedTools(a.Tools), a.Tools != nil)
		set("ask", renderedAsk(a.Ask), a.Ask != nil)
		set("ociRuntime", a.OCI, a.OCI != "")
		var mounts []object
		for _, x := range a.Mounts {
			mounts = append(mounts, object{"host": x.Host, "path": x.Target})
		}
		set("mounts", mounts, len(mounts) > 0)
		var egress []any
		for _, d := range a.Egress {
			if d.Host == "" || d.Host == "host" {
				egress = append(egress, d.Target())
				continue
			}
			egress = append(egress, object{"to": d.Target(), "sni": d.SNI})
		}
		set("egress", egress, len(egress) > 0)
		l := object{}
		put := func(key string, value string, present bool) {
			if present {
				l[key] = value
			}
		}
		put("memory", strconv.FormatInt(a.Limits.MemoryBytes, 10), a.Limits.MemoryBytes > 0)
		put("cpu", strconv.FormatInt(a.Limits.MilliCPU, 10)+"m", a.Limits.MilliCPU > 0)
		put("pids", strconv.FormatInt(a.Limits.PIDs, 10), a.Limits.PIDs > 0)
		put("noFile", strconv.FormatUint(a.Limits.NoFile, 10), a.Limits.NoFile > 0)
		put("core", strconv.FormatUint(a.Limits.CoreBytes, 10), a.Limits.CoreBytes > 0)
		put("disk", strconv.FormatInt(a.Limits.DiskBytes, 10), a.Limits.DiskBytes > 0)
		put("inodes", strconv.FormatInt(a.Limits.Inodes, 10), a.Limits.Inodes > 0)
		put("logs", strconv.FormatInt(a.Limits.LogBytes, 10), a.Limits.LogBytes > 0)
		put("connections", strconv.FormatInt(a.Limits.Connections, 10), a.Limits.Connections > 0)
		put("stopGrace", a.Limits.StopGrace.String(), a.Limits.StopGrace > 0)
		set("limits", l, len(l) > 0)
		agents[a.Name] = o
		order = append(order, a.Name)
	}
	var b bytes.Buffer
	b.WriteString("{\"apiVersion\":" + quoted(m.APIVersion) + ",\"team\":" + quoted(m.Team))
	if m.Orchestrator != "" {
		b.WriteString(",\"orchestrator\":" + quoted(m.Orchestrator))
	}
	if v := m.Verify; v != DefaultVerify() {
		every := v.Every.String()
		if v.Every == 0 {
			every = never
		}
		b.WriteString(",\"verify\":" + quoted(object{"every": every, "onChange": v.OnChange, "onDrift": v.OnDrift}))
	}
	if len(m.Agents) > 0 {
		if u := m.Agents[0].Upstream; u != nil {
			o := object{"url": u.URL()}
			if u.Credentials.Path != "" {
				o["credentialsFile"] = u.Credentials.Path
			}
			if len(u.Except) > 0 {
				o["except"] = u.Except
			}
			b.WriteString(",\"upstreamProxy\":" + quoted(o))
		}
		if files := m.Agents[0].CAFiles; len(files) > 0 {
			b.WriteString(",\"caFiles\":" + quoted(paths(files)))
		}
	}
	if f := m.Front; f != nil {
		o := object{"listen": f.Listen.String()}
		if f.Cert.Path != "" {
			o["certFile"], o["keyFile"] = f.Cert.Path, f.Key.Path
		}
		b.WriteString(",\"front\":" + quoted(o))
	}
	if m.Audit {
		b.WriteString(",\"audit\":true")
	}
	if len(m.Topics) > 0 {
		o := object{}
		for name, rule := range m.Topics {
			o[name] = object{"publish": rule.Publish, "read": rule.Read, "storage": strconv.FormatInt(rule.Storage, 10)}
		}
		b.WriteString(",\"topics\":" + quoted(o))
	}
	b.WriteString(",\"agents\":{")
	for i, name := range order {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(quoted(name) + ":" + quoted(agents[name]))
	}
	b.WriteString("}}")
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, b.Bytes(), "", "  "); err != nil {
		panic(err) // the test's own JSON
	}
	pretty.WriteByte('\n')
	return pretty.Bytes()
}

func renderedMessages(m *Messages) map[string]any {
	o := map[string]any{}
	if m == nil {
		return o
	}
	if len(m.To) > 0 {
		o["to"] = m.To
	}
	if len(m.Critical) > 0 {
		o["critical"] = m.Critical
	}
	if m.MaxBytes > 0 {
		o["maxBytes"] = strconv.FormatInt(m.MaxBytes, 10)
	}
	if p := m.Push; p != nil {
		push := map[string]any{"port": p.Port, "path": p.Path}
		if p.TokenFile != "" {
			push["tokenFile"] = p.TokenFile
		}
		o["push"] = push
	}
	return o
}

func quoted(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // the test's own values
	}
	return string(bytes.TrimSpace(b.Bytes()))
}

func renderedAsk(a *Ask) any {
	if a == nil {
		return nil
	}
	o := map[string]any{}
	if len(a.Tools) > 0 {
		o["tools"] = a.Tools
	}
	if len(a.Egress) > 0 {
		o["egress"] = targets(a.Egress)
	}
	if a.Expire > 0 {
		o["expire"] = a.Expire.String()
	}
	if a.Waiting > 0 {
		o["waiting"] = a.Waiting
	}
	return o
}

func renderedTools(t *Tools) any {
	if t == nil {
		return nil
	}
	o := map[string]any{
		"ratePerMinute": t.RatePerMinute, "memory": strconv.FormatInt(t.MemoryBytes, 10), "storage": strconv.FormatInt(t.StorageBytes, 10),
	}
	if len(t.Allow) > 0 {
		o["allow"] = t.Allow
	}
	if len(t.Webhooks) > 0 {
		o["webhooks"] = t.Webhooks
	}
	if t.CodeImage != "" {
		code := map[string]any{"image": t.CodeImage}
		for key, n := range map[string]int64{"memory": t.CodeMemoryBytes, "pids": t.CodePIDs, "output": t.CodeOutputBytes} {
			if n != 0 {
				code[key] = n
			}
		}
		o["code"] = code
	}
	return o
}
