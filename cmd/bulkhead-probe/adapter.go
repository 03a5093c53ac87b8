package main

import "fmt"

// adapterToken authenticates at the gateway's own socket of the adapter with
// tokens that are not the agent's.
func adapterToken(t *trial) error {
	for _, path := range t.Paths {
		for what, token := range strangers() {
			no, err := converse(path, "adapter", request{"auth", map[string]string{"token": token}})
			if err != nil {
				return fmt.Errorf("adapter %s: %w", path, err)
			}
			if t.step(what, no) {
				t.saw("the adapter took %s", what)
				return nil
			}
		}
	}
	return nil
}
