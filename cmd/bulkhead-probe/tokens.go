package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"bulkhead/internal/wire"
)

// gatewayKinds are attempts at an agent's own gateway, by its HTTP.
func gatewayKinds() map[string]kind {
	return map[string]kind{
		"gateway.forged": {do: gatewayForged},
		"gateway.admin":  {do: gatewayAdmin},
		"tool.fetch":     {do: toolFetch},
		"dialer.rebind":  {do: dialerRebind},
	}
}

// gatewayForged calls its own gateway with tokens that control did not sign.
// Names are the team and the agents that they are for.
func gatewayForged(t *trial) error {
	if len(t.Names) < 2 {
		return errors.New("the request names no team and agent")
	}
	given := strangers()
	for _, agent := range t.Names[1:] {
		for what, token := range forgeries(t.Names[0], agent) {
			given[what+", for "+agent] = token
		}
	}
	for what, token := range given {
		err := askGatewayWith(t, token, "GET", "/v1/tools", "")
		if err != nil && !errors.As(err, new(refused)) {
			return err
		}
		if t.step(what, err) {
			t.saw("the gateway took %s", what)
			return nil
		}
	}
	return nil
}

// forgeries are tokens in the form of control's, for a team's agent.
func forgeries(team, agent string) map[string]string {
	encode := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err) // plain data: cannot happen
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	now := time.Now().Unix()
	claims := encode(map[string]any{"sub": agent, "team": team, "aud": "bulkhead", "exp": now + 3600, "nbf": now, "iat": now, "jti": "forged", "epoch": 1})
	sign := func(header map[string]any) string {
		return encode(header) + "." + claims + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))
	}
	return map[string]string{
		"a token that nobody signed":                                encode(map[string]any{"alg": "none", "typ": "JWT"}) + "." + claims + ".",
		"a token whose key has no name and whose signature is zero": sign(map[string]any{"alg": "HS256", "kid": "", "typ": "JWT"}),
		"a token whose header names a key":                          sign(map[string]any{"alg": "EdDSA", "kid": "../../dev/null", "typ": "JWT"}),
		"a token whose header brings its own key":                   sign(map[string]any{"alg": "EdDSA", "typ": "JWT", "jwk": map[string]string{"kty": "OKP", "crv": "Ed25519", "x": strings.Repeat("A", 43)}}),
		"a token whose signature is another's part":                 encode(map[string]any{"alg": "EdDSA", "kid": "1", "typ": "JWT"}) + "." + claims + "." + claims,
	}
}

// gatewayAdmin asks for what front alone has: to make agents.
func gatewayAdmin(t *trial) error {
	given := strangers()
	given["a guess"] = "admin"
	if os.Getenv(wire.EnvTokenFile) != "" { // else it has neither tools nor messages, and none
		own, err := ownToken()
		if err != nil {
			return err
		}
		given["its own token"] = own
	}
	for what, token := range given {
		for _, path := range []string{"/admin/agents", "/v1/admin/agents", "/mcp/admin/agents"} {
			err := askGatewayWith(t, token, "POST", path, `{"name":"forged"}`)
			if err != nil && !errors.As(err, new(refused)) {
				return err
			}
			if t.step("POST "+path+" with "+what, err) {
				t.saw("an agent was made with %s", what)
				return nil
			}
		}
	}
	return nil
}

// toolFetch has a tool of its gateway fetch what lies inward. Names are URLs.
func toolFetch(t *trial) error {
	for _, url := range t.Names {
		err := askGateway(t, "POST", "/v1/tools/net_http_get", fmt.Sprintf(`{"url":%q}`, url))
		if err != nil && !errors.As(err, new(refused)) {
			return err
		}
		if t.step("net_http_get "+url, err) {
			t.saw("the tool fetched %s", url)
			return nil
		}
	}
	return nil
}
