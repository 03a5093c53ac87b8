package attempt

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

var asked = Request{Version: Version, Nonce: "n1", Attempt: "mount.tmpfs"}

func TestOnlyAWholeAnswerToThisQuestionCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		raw  string
		lost bool
	}{
		"a refusal":                         {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, false},
		"a success":                         {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"succeeded","steps":[{"what":"x"}]}`, false},
		"a failure to try":                  {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"error","detail":"no /tmp"}`, false},
		"nothing at all":                    {``, true},
		"half an answer":                    {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"den`, true},
		"another nonce":                     {`{"version":1,"nonce":"n2","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, true},
		"another attempt":                   {`{"version":1,"nonce":"n1","attempt":"mount.fsopen","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, true},
		"another version":                   {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, true},
		"a denial that nobody made":         {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied"}`, true},
		"a denial with a step that went on": {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"},{"what":"y"}]}`, true},
		"an outcome that does not exist":    {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"fine"}`, true},
		"two answers":                       {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"error"}{}`, true},
		"a field that nobody knows":         {`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"error","extra":1}`, true},
		"far too much":                      {strings.Repeat(" ", MaxBytes+1), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseAnswer([]byte(tc.raw), asked)
			if (err != nil) != tc.lost {
				t.Fatalf("lost = %v (%v), want %v", err != nil, err, tc.lost)
			}
			if err != nil && !errors.Is(err, ErrLost) {
				t.Fatalf("%v does not wrap ErrLost", err)
			}
		})
	}
}

func TestAnEmptyNonceIsNeverMatched(t *testing.T) {
	q := asked
	q.Nonce = ""
	_, err := ParseAnswer([]byte(`{"version":1,"nonce":"","attempt":"mount.tmpfs","outcome":"error"}`), q)
	if !errors.Is(err, ErrLost) {
		t.Fatalf("got %v, want ErrLost", err)
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte(`{"version":1,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`))
	f.Add([]byte(`{"nonce":"n1"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := ParseAnswer(raw, asked)
		if err != nil {
			if !errors.Is(err, ErrLost) {
				t.Fatalf("%v does not wrap ErrLost", err)
			}
			return
		}
		if a.Nonce != asked.Nonce || a.Attempt != asked.Attempt {
			t.Fatal("took an answer to another question")
		}
		if a.Outcome == Denied {
			for _, s := range a.Steps {
				if s.Refusal == "" {
					t.Fatal("took a denial with a step that went through")
				}
			}
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"nonce":"a","attempt":"file.read","paths":["/etc"],"own":[{"first":1,"last":2}],"spare":[4026531840]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		q, err := ParseRequest(raw)
		if err != nil {
			if !errors.Is(err, ErrRequest) {
				t.Fatalf("%v does not wrap ErrRequest", err)
			}
			return
		}
		again, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseRequest(again); err != nil {
			t.Fatalf("does not read what it wrote: %v", err)
		}
	})
}
