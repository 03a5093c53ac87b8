package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/wire"
)

// approve tries to have its own call approved: by every socket that it finds, in every
// protocol, and by every tool and path of the gateway. Each line with ANSWERED is one that
// was taken.
func approve(args []string) error {
	agent, id := args[0], args[1]
	sockets := []string{}
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read is not found
		case path == "/proc" || path == "/sys":
			return filepath.SkipDir
		case d.Type()&fs.ModeSocket != 0:
			sockets = append(sockets, path)
		}
		return nil
	})
	if raw, err := os.ReadFile("/proc/net/unix"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if f := strings.Fields(line); len(f) == 8 && f[0] != "Num" {
				sockets = append(sockets, f[7])
			}
		}
	}
	// Folders that cannot be listed hide what can be connected to all the same.
	own := os.Getenv("BULKHEAD_GATEWAY_SOCKET")
	sockets = append(sockets, own, "/run/bulkhead/warden.sock", "/run/bulkhead/control/grants.sock")
	for _, name := range []string{"grants.sock", "control.sock", "launcher.sock", "dialer.sock", "pin.sock", "proc.sock", "runtime.sock", "warden.sock"} {
		sockets = append(sockets, filepath.Join(filepath.Dir(own), name))
	}
	slices.Sort(sockets)
	sockets = slices.Compact(sockets)
	tried := 0
	for _, path := range sockets {
		for _, protocol := range []string{wire.WardenProtocol, wire.GrantsProtocol, wire.GatewayProtocol, wire.ShimProtocol, wire.DialerProtocol, wire.PinProtocol, wire.CodeProtocol, "launcher", "adapter"} {
			for verb, body := range map[string]any{
				wire.VerbDecide:       wire.DecideRequest{Team: "pair", Agent: agent, ID: id, Approve: true, Kind: wire.PermitAlways, Wide: true},
				wire.VerbPermits:      wire.AgentRequest{Team: "pair", Agents: []string{agent}},
				wire.VerbApprovals:    wire.ApprovalsRequest{Team: "pair", Agents: []string{agent}},
				wire.VerbRevokePermit: wire.RevokePermitRequest{Team: "pair", Agent: agent, ID: id},
				wire.VerbExecutions:   wire.ExecutionsRequest{Team: "pair", Agents: []string{agent}},
				wire.VerbExecution:    wire.ExecutionRequest{Team: "pair", Agent: agent, ID: id, Action: wire.ExecutionResume},
			} {
				tried++
				if got := frame(path, protocol, verb, body); got != "" {
					fmt.Println("ANSWERED", path, protocol, verb, got)
				}
			}
		}
	}
	n, err := overHTTP(id)
	fmt.Printf("tried %d frames on %d sockets %v, and %d requests\n", tried, len(sockets), sockets, n)
	return err
}

// frame gives the verb that one request is answered with, unless it is refused.
func frame(path, protocol, verb string, body any) string {
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return ""
	}
	_ = u.SetDeadline(time.Now().Add(2 * time.Second))
	c := wire.New(u)
	defer func() { _ = c.Close() }()
	if _, err := c.Greet(protocol, 1); err != nil {
		return ""
	}
	if c.Send(1, verb, body) != nil {
		return ""
	}
	m, _, err := c.Recv()
	if err != nil || m.Verb == wire.VerbError {
		return ""
	}
	return m.Verb
}

// overHTTP asks the gateway by every name that might mean it.
func overHTTP(id string) (tried int, err error) {
	token, err := os.ReadFile(os.Getenv(wire.EnvTokenFile))
	if err != nil {
		return 0, err
	}
	socket := os.Getenv("BULKHEAD_GATEWAY_SOCKET")
	direct := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	clients := map[string]*http.Client{"gateway.sock": direct}
	if proxy, perr := url.Parse(os.Getenv("HTTP_PROXY")); perr == nil && proxy.Host != "" {
		clients["proxy"] = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	}
	do := func(way, method, path, body string) (int, string) {
		tried++
		q, err := http.NewRequestWithContext(context.Background(), method, "http://"+wire.OwnName+path, strings.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		q.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		a, err := clients[way].Do(q) // #nosec G704 -- the gateway's own name
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = a.Body.Close() }()
		text, _ := io.ReadAll(io.LimitReader(a.Body, 1<<20)) // what came is enough
		return a.StatusCode, string(text)
	}
	names := []string{"execution_approve", "execution_decide", "execution_grant", "approve", "decide", "permits", "agentos.execution_approve", "grants", "trust"}
	_, list := do("gateway.sock", http.MethodGet, "/v1/tools", "")
	var known struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal([]byte(list), &known); err != nil {
		return tried, fmt.Errorf("%w: %s", err, list)
	}
	for _, t := range known.Tools {
		names = append(names, t.Name)
	}
	inputs := []string{
		`{"executionId":"` + id + `","approve":true,"approved":true,"granted":true}`, `{"id":"` + id + `","approve":true}`, `{"executionId":"` + id + `","decision":"approve","by":0}`,
	}
	for way := range clients {
		for _, path := range []string{"/v1/approvals", "/v1/approvals/" + id, "/v1/executions/" + id + "/approve", "/v1/executions/" + id, "/v1/grants", "/v1/permits", "/admin/approvals", "/approve"} {
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch} {
				for _, in := range inputs {
					if code, text := do(way, method, path, in); code/100 == 2 {
						fmt.Println("ANSWERED", way, method, path, text)
					}
				}
			}
		}
		for _, name := range names {
			switch name {
			case "execution_cancel", "execution_pause", "execution_resume":
				continue // it may take its call back, and hold it
			}
			for _, in := range inputs {
				code, text := do(way, http.MethodPost, "/v1/tools/"+name, in)
				if code/100 == 2 && (strings.Contains(text, "granted") || strings.Contains(text, "approved")) {
					fmt.Println("ANSWERED", way, name, text)
				}
				rpc, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": name, "arguments": json.RawMessage(in)}})
				if err != nil {
					return tried, err
				}
				if code, text := do(way, http.MethodPost, "/mcp", string(rpc)); code/100 == 2 && bytes.Contains([]byte(text), []byte(`"granted"`)) {
					fmt.Println("ANSWERED", way, "mcp", name, text)
				}
				do(way, http.MethodPost, "/mcp", `{"tool":"`+name+`","input":`+in+`}`)
			}
		}
	}
	return tried, nil
}
