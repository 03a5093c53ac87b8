package execution

import "strings"

// splitID takes an id apart that a person typed: x2ab or x2ab.3; n is 0 without one.
func splitID(id string) (execution string, n int, ok bool) {
	execution, part, has := strings.Cut(id, ".")
	if !has {
		return execution, 0, validID(execution)
	}
	if len(part) == 0 || len(part) > 2 || part[0] == '0' {
		return "", 0, false
	}
	for _, ch := range []byte(part) {
		if ch < '0' || ch > '9' {
			return "", 0, false
		}
		n = 10*n + int(ch-'0')
	}
	return execution, n, validID(execution)
}

// validID says whether an id is one that [govern.NewID] makes.
func validID(id string) bool {
	if len(id) != 9 || id[0] != 'x' {
		return false
	}
	for _, ch := range []byte(id[1:]) {
		if (ch < 'a' || ch > 'z') && (ch < '2' || ch > '7') {
			return false
		}
	}
	return true
}
