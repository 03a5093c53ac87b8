//go:build !amd64

package main

const getpidX32 = 0

// archKinds are attempts by calls that this architecture does not have.
func archKinds() map[string]kind {
	none := func(*trial) error { return errUnsupported }
	return map[string]kind{
		"arch.modify_ldt": {do: none},
		"arch.ports":      {do: none},
		"arch.x32":        {do: none},
	}
}
