package warden

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/host/tree"
	"bulkhead/internal/host/trust"
	"bulkhead/internal/layout"
	"bulkhead/internal/team"
)

// What a team says about its company's network: the proxy's credentials, and
// the company's certificate authorities.

// maxCredentials bounds the file: RFC 7617 knows no limit, proxies do.
const maxCredentials = 4 << 10

// authorization reads the proxy's credentials, at the moment that they are
// used: new ones need no restart. Nothing of them is in an error.
func authorization(u *team.Upstream) (string, error) {
	raw, err := tree.ReadFile(u.Credentials.Path, maxCredentials, true)
	if err != nil {
		return "", err
	}
	text, err := basic(raw)
	if err != nil {
		return "", fmt.Errorf("%s: %w", u.Credentials.Path, err)
	}
	return text, nil
}

// basic makes the value of the field from one line "user:password" (RFC 7617).
func basic(raw []byte) (string, error) {
	line := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	user, password, ok := strings.Cut(line, ":")
	switch {
	case strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return "", errors.New("it must hold one line, user:password, without control characters")
	case !ok || user == "" || password == "":
		return "", errors.New("it must hold one line, user:password")
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(line)), nil
}

// checkCompany says what of a team's network settings cannot be used, each with
// its place in the manifest. They are the same for all agents.
func checkCompany(m *team.Manifest) []string {
	if len(m.Agents) == 0 {
		return nil
	}
	a := m.Agents[0]
	var out []string
	if u := a.Upstream; u != nil && u.Credentials.Path != "" {
		if _, err := authorization(u); err != nil {
			out = append(out, fmt.Sprintf("%s: upstreamProxy.credentialsFile: %v", u.Credentials.Position, err))
		}
	}
	for i, f := range a.CAFiles {
		if _, err := trust.Company(f.Path); err != nil {
			out = append(out, fmt.Sprintf("%s: caFiles[%d]: %v", f.Position, i, err))
		}
	}
	return out
}

// Names of the lists of authorities in root's folder, and in the runtime's.
const (
	caFolder  = "ca"
	caCompany = "company.pem" // the company's alone
	caAll     = "all.pem"     // with the image's own; absent when it has none
	insideCA  = "/run/ca"
)

// authorities are the lists that the runtime is shown, none without caFiles, and
// the one that its gateway is, by path below conf.
func (a *agentRun) authorities() (map[string]string, error) {
	company, err := companyOf(a.Want)
	if err != nil {
		return nil, err
	}
	files, err := a.gatewayAuthorities(company)
	if err != nil || len(company) == 0 {
		return files, err
	}
	image, err := trust.Image(rootfsOf(a.w.host, &a.Agent))
	if err != nil {
		return nil, fmt.Errorf("warden: the image's own list of certificate authorities: %w", err)
	}
	if err := tree.MakeAll(tree.Entry{Path: filepath.Join(a.Place.Conf(), caFolder), Mode: 0o755}); err != nil {
		return nil, err
	}
	if files == nil {
		files = map[string]string{}
	}
	files[filepath.Join(caFolder, caCompany)] = string(company)
	all := filepath.Join(caFolder, caAll)
	if len(image) > 0 {
		files[all] = string(slices.Concat(image, company))
		return files, nil
	}
	return files, tree.Remove(filepath.Join(a.Place.Conf(), all))
}

// companyOf reads the authorities that caFiles name, as PEM.
func companyOf(a *team.Agent) (company []byte, err error) {
	for _, f := range a.CAFiles {
		one, err := trust.Company(f.Path)
		if err != nil {
			return nil, fmt.Errorf("warden: caFiles: %w", err)
		}
		company = append(company, one...)
	}
	return company, nil
}

// addingCA are the variables whose list comes on top of a program's own.
// https://nodejs.org/api/cli.html (NODE_EXTRA_CA_CERTS); npm is a node program,
// and its own cafile would replace the list.
var addingCA = []string{"NODE_EXTRA_CA_CERTS"}

// replacingCA are those whose list is the only one that counts: OpenSSL, Go and
// Rust's native roots; Python's requests and pip; curl; git; cargo; the AWS
// tools. Each may only be given a list that has the image's authorities too.
var replacingCA = []string{
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
}

// caEnv points programs to the lists. An image without a list of its own may
// hold programs that bring one along (certifi): those are left alone, and only
// OpenSSL and its like, who would have none at all, are shown the company's.
func caEnv(a *host.Agent) map[string]string {
	if len(a.Want.CAFiles) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, v := range addingCA {
		out[v] = insideCA + "/" + caCompany
	}
	out["SSL_CERT_FILE"] = insideCA + "/" + caCompany
	if _, err := os.Lstat(filepath.Join(a.Place.Conf(), caFolder, caAll)); err == nil {
		for _, v := range replacingCA {
			out[v] = insideCA + "/" + caAll
		}
	}
	return out
}

// dialerLimitsFor are the dialer's limits. One that relays holds, for each
// connection, its socket, an end of a pair, and up to four ends of pipes by
// which the kernel splices; what waits in the pair counts as its memory.
func dialerLimitsFor(a *team.Agent) engine.Limits {
	l := dialerLimits
	if a.Upstream != nil {
		n := a.Limits.WithDefaults().Connections
		l.MemoryBytes += n * 2 * (64 << 10)
		l.NoFile += uint64(n) * 6 // #nosec G115 -- bounded by the manifest
	}
	return l
}

// throughProxy says in a status how names are reached and who keeps that.
func throughProxy(u *team.Upstream) string {
	if u == nil {
		return ""
	}
	return "; names go through " + u.URL() + ": of them the kernel knows the proxy's address alone, gateway and dialer keep to the names"
}

// upstreamOf is the address at which the kernel lets an agent's dialer reach its
// proxy now; empty when none is pinned.
func (w *Warden) upstreamOf(place layout.Agent, u *team.Upstream) string {
	if u == nil {
		return ""
	}
	for _, e := range w.table.Pins(place.Account) {
		if slices.Contains(e.Destinations, "proxy "+u.Target()) {
			return e.Address.String()
		}
	}
	return ""
}
