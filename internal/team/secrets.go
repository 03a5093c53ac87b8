package team

import (
	"net/url"
	"strings"
)

const maxVariables = 256

// reference is op://vault/item/field or op://vault/item/section/field
// (1Password's secret reference syntax).
var reference = lazily(`^op://[^/\s]+(/[^/\s]+){2,3}$`)

// issued matches the prefixes that issuers give their secrets, so that scanners
// can find them.
var issued = lazily(`(^|[^A-Za-z0-9])(sk-[A-Za-z0-9_-]{16,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abpors]-[A-Za-z0-9-]{10,}|A(KIA|SIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|ops_[A-Za-z0-9]{20,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----)`)

// secretive matches variable names that usually hold secrets.
var secretive = lazily(`(?i)(passw(or)?d|passphrase|secret|token|api_?key|private_?key|access_?key|credential)`)

// looksSecret guesses whether a value should not lie in a file. It errs
// towards passing short, plain or path-like values, such as "unused".
func looksSecret(variable, value string) bool {
	if issued().MatchString(value) {
		return true
	}
	if u, err := url.Parse(value); err == nil && u.User != nil {
		if pass, set := u.User.Password(); set && pass != "" {
			return true
		}
	}
	if !secretive().MatchString(variable) || len(value) < 12 || strings.ContainsAny(value, " /") {
		return false
	}
	return strings.ContainsAny(value, "0123456789") &&
		strings.ContainsAny(strings.ToLower(value), "abcdefghijklmnopqrstuvwxyz")
}

// env reads the plain variables of an agent. Values never appear in faults.
func (r *reader) env(p place) map[string]string {
	if p.node == nil {
		return nil
	}
	entries, _ := r.mapping(p, "variables, like {LANG: C.UTF-8}")
	if len(entries) > maxVariables {
		r.fault(p, "pass long settings as a file under mounts", "there are %d variables, more than %d", len(entries), maxVariables)
		return nil
	}
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		r.variableName(e.key, e.name)
		value, ok := r.text(e.val, "text; quote it if YAML reads it otherwise")
		if !ok {
			continue
		}
		if looksSecret(e.name, value) {
			r.fault(e.val, "give the agent a credential file in its workspace instead", "the value of %s looks like a secret", clip(e.name))
			continue
		}
		out[e.name] = value
	}
	return out
}

func (r *reader) variableName(p place, s string) {
	switch upper := strings.ToUpper(s); {
	case !variable().MatchString(s):
		r.fault(p, "use letters, digits and _, not beginning with a digit", "%q cannot be a variable's name", clip(s))
	case contains(setByUs, upper) || strings.HasPrefix(upper, "BULKHEAD_"):
		r.fault(p, "remove it", "%s is set by Bulkhead", clip(s))
	}
}

// secrets reads references to secrets. What is not a reference may be the
// secret itself, so it is never shown.
func (r *reader) secrets(p place, env map[string]string) map[string]string {
	if p.node == nil {
		return nil
	}
	entries, _ := r.mapping(p, "references, like {API_KEY: op://vault/item/field}")
	if len(entries) > maxVariables {
		r.fault(p, "keep fewer secrets per agent", "there are %d secrets, more than %d", len(entries), maxVariables)
		return nil
	}
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		r.variableName(e.key, e.name)
		if _, both := env[e.name]; both {
			r.fault(e.key, "remove it from env", "%s is set under env as well", clip(e.name))
		}
		ref, ok := r.text(e.val, "op://vault/item/field")
		if !ok {
			continue
		}
		if len(ref) > 512 || !reference().MatchString(ref) {
			r.fault(e.val, "remove it: this build does not deliver secrets", "this is not a reference to a secret")
			continue
		}
		out[e.name] = ref
	}
	return out
}
