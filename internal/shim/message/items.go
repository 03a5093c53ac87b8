package message

import (
	"encoding/json"
	"errors"
	"fmt"

	"bulkhead/internal/deny"
	"bulkhead/internal/shim/ask"
)

// items are the answers for several leases.
type items struct {
	Results []struct {
		Status int            `json:"status"`
		Error  *deny.Envelope `json:"error"`
	} `json:"results"`
}

// each gives the first refusal among several answers.
func each(body []byte) error {
	var all items
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("the gateway's answer: %w", err)
	}
	for _, r := range all.Results {
		if r.Error != nil {
			return &ask.Failure{Envelope: *r.Error}
		}
	}
	if len(all.Results) == 0 {
		return errors.New("the gateway's answer has no results")
	}
	return nil
}
