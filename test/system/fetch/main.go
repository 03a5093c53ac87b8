// Command fetch prints what a URL gives, as ordinary programs get it: by the
// proxy and the certificate authorities that the environment names.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	for _, url := range os.Args[1:] {
		if err := get(url); err != nil {
			fmt.Fprintln(os.Stderr, "fetch:", err)
			os.Exit(1)
		}
	}
}

func get(url string) error {
	c := &http.Client{Timeout: 30 * time.Second}
	r, err := c.Get(url) // #nosec G107 -- what it is for
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(r.Body, 4096))
		return fmt.Errorf("%s: %s", r.Status, b)
	}
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}
