package warden

import (
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

func TestCredentialsAreOneLine(t *testing.T) {
	for raw, want := range map[string]string{
		"jo:hunter2":          "Basic am86aHVudGVyMg==",
		"jo:hunter2\n":        "Basic am86aHVudGVyMg==",
		"jo:hunter2\r\n":      "Basic am86aHVudGVyMg==",
		"CORP\\jo:a:b c\n":    "Basic Q09SUFxqbzphOmIgYw==",
		"jo":                  "",
		"":                    "",
		":x":                  "",
		"jo:":                 "",
		"jo:a\njo:b\n":        "",
		"jo:a\r\nHost: x\r\n": "",
		"jo:a\x00":            "",
	} {
		got, err := basic([]byte(raw))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v, want %q", raw, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "jo:a") {
			t.Errorf("%q: the error shows it", raw)
		}
	}
}

func TestVariablesOfTheAgentWinOverTheCompanys(t *testing.T) {
	a := &host.Agent{
		Place: layout.Default().Agent("pair", "writer"),
		Want: &team.Agent{
			Name: "writer", CAFiles: []team.HostFile{{Path: "/etc/ca.pem"}}, Env: map[string]string{"NODE_EXTRA_CA_CERTS": "/workspace/own.pem"},
		},
	}
	env := strings.Join(runtimeEnv(a), "\n")
	if !strings.Contains(env, "NODE_EXTRA_CA_CERTS=/workspace/own.pem") || !strings.Contains(env, "SSL_CERT_FILE=/run/ca/company.pem") {
		t.Error(env)
	}
	// No list of the image's own is there, so nothing else may lose its own.
	if strings.Contains(env, "REQUESTS_CA_BUNDLE") {
		t.Error(env)
	}
	a.Want.CAFiles = nil
	if env := strings.Join(runtimeEnv(a), "\n"); strings.Contains(env, "SSL_CERT_FILE") {
		t.Error(env)
	}
}
