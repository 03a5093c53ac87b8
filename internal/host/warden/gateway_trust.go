package warden

import (
	"fmt"
	"path/filepath"
	"slices"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/host/trust"
)

// The certificate authorities by which a gateway verifies the servers that its
// net tools reach: this host's own list and the company's. A gateway has no
// image that could bring one along.
const (
	gatewayCAFolder = "gateway-ca" // below conf
	gatewayCAFile   = "all.pem"
	insideTrust     = "/run/trust"
)

// speaksTLS says whether the gateway of a may be asked to verify anybody.
func speaksTLS(a *host.Agent) bool { return len(a.Want.Egress) > 0 }

// gatewayAuthorities is the list, by its path below conf; none for an agent that
// reaches nobody. company is PEM. A host without a list leaves the company's.
func (a *agentRun) gatewayAuthorities(company []byte) (map[string]string, error) {
	if !speaksTLS(&a.Agent) {
		return nil, nil
	}
	own, err := trust.Image("/")
	if err != nil {
		return nil, fmt.Errorf("warden: this host's own list of certificate authorities: %w", err)
	}
	if err := tree.MakeAll(tree.Entry{Path: filepath.Join(a.Place.Conf(), gatewayCAFolder), Mode: 0o755}); err != nil {
		return nil, err
	}
	return map[string]string{filepath.Join(gatewayCAFolder, gatewayCAFile): string(slices.Concat(own, company))}, nil
}

// withTrust shows the list to a gateway; Go's x509 reads it at the first
// connection that needs it.
func withTrust(s engine.Spec, a *host.Agent) engine.Spec {
	if speaksTLS(a) {
		s.Mounts = append(s.Mounts, engine.Mount{Kind: engine.MountBind, Source: filepath.Join(a.Place.Conf(), gatewayCAFolder), Target: insideTrust})
		s.Env = append(s.Env, "SSL_CERT_FILE="+insideTrust+"/"+gatewayCAFile, "SSL_CERT_DIR=/dev/null")
	}
	return s
}
