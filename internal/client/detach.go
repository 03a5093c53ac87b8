package client

// detachKeys looks for two bytes, one after the other, in what is typed.
type detachKeys struct {
	first, second byte
	held          bool // the first one has come, and waits for what follows
	left          bool
}

// pass gives what goes on to the process. The first of the keys is held back
// until another one follows. What comes after both of them is dropped. Nil passes
// everything.
func (k *detachKeys) pass(b []byte) (out []byte, left bool) {
	if k == nil {
		return b, false
	}
	out = make([]byte, 0, len(b)+1)
	for _, c := range b {
		switch {
		case k.held && c == k.second:
			k.left = true
			return out, true
		case k.held && c == k.first:
			out = append(out, k.first) // one of the two goes on, the other is held
			continue
		case k.held:
			out = append(out, k.first)
			k.held = false
		}
		if c == k.first {
			k.held = true
			continue
		}
		out = append(out, c)
	}
	return out, false
}

// typed says whether the keys have come.
func (k *detachKeys) typed() bool { return k != nil && k.left }
