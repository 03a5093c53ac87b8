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
		"a refusal":                         {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, false},
		"a success":                         {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"succeeded","steps":[{"what":"x"}]}`, false},
		"a failure to try":                  {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"error","detail":"no /tmp"}`, false},
		"nothing at all":                    {``, true},
		"half an answer":                    {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"den`, true},
		"another nonce":                     {`{"version":2,"nonce":"n2","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, true},
		"another attempt":                   {`{"version":2,"nonce":"n1","attempt":"mount.fsopen","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, true},
		"another version":                   {`{"version":9,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`, true},
		"a denial that nobody made":         {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied"}`, true},
		"a denial with a step that went on": {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"},{"what":"y"}]}`, true},
		"an outcome that does not exist":    {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"fine"}`, true},
		"two answers":                       {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"error"}{}`, true},
		"a field that nobody knows":         {`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"error","extra":1}`, true},
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
	_, err := ParseAnswer([]byte(`{"version":2,"nonce":"","attempt":"mount.tmpfs","outcome":"error"}`), q)
	if !errors.Is(err, ErrLost) {
		t.Fatalf("got %v, want ErrLost", err)
	}
}

func TestEveryAttemptHasItsOwnAnswer(t *testing.T) {
	b := Batch{Version: Version, Attempts: []Request{{Version: Version, Nonce: "n1", Attempt: "a"}, {Version: Version, Nonce: "n2", Attempt: "b"}}}
	const one, two = `{"version":2,"nonce":"n1","attempt":"a","outcome":"error"}`, `{"version":2,"nonce":"n2","attempt":"b","outcome":"error"}`
	for name, tc := range map[string]struct {
		raw        string
		lost, also bool
	}{
		"both, in another order":           {two + "\n" + one + "\n", false, false},
		"one is missing":                   {two + "\n", true, false},
		"killed within a line":             {two + "\n" + one[:20], true, false},
		"the answer to another attempt":    {two + "\n" + strings.Replace(one, `"a"`, `"b"`, 1), true, false},
		"one answered twice":               {one + "\n" + two + "\n" + one + "\n", true, false},
		"a stranger's line besides":        {one + "\n" + two + "\n" + `{"nonce":"n3"}`, false, false},
		"nothing":                          {"", true, true},
		"far too much, whatever it may be": {one + "\n" + two + strings.Repeat("\n", MaxBytes), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := ParseAnswers([]byte(tc.raw), b)
			if lost := got[0].Err != nil; lost != tc.lost {
				t.Errorf("the first is lost: %v (%v)", lost, got[0].Err)
			}
			if lost := got[1].Err != nil; lost != tc.also {
				t.Errorf("the second is lost: %v (%v)", lost, got[1].Err)
			}
			for _, r := range got {
				if r.Err != nil && !errors.Is(r.Err, ErrLost) {
					t.Errorf("%v does not wrap ErrLost", r.Err)
				}
			}
		})
	}
}

func FuzzParseBatch(f *testing.F) {
	f.Add([]byte(`{"version":2,"attempts":[{"version":2,"nonce":"a","attempt":"file.read"},{"version":2,"nonce":"b","attempt":"file.read"}]}`), []byte(`{"version":2,"nonce":"a","attempt":"file.read","outcome":"error"}`+"\n{"))
	f.Add([]byte(`{"version":2,"attempts":[]}`), []byte("\n\n"))
	f.Fuzz(func(t *testing.T, raw, said []byte) {
		b, err := ParseBatch(raw)
		if err != nil {
			if !errors.Is(err, ErrRequest) {
				t.Fatalf("%v does not wrap ErrRequest", err)
			}
			return
		}
		got := ParseAnswers(said, b)
		if len(got) != len(b.Attempts) {
			t.Fatalf("%d results for %d attempts", len(got), len(b.Attempts))
		}
		for i, r := range got {
			if r.Err == nil && (r.Answer.Nonce != b.Attempts[i].Nonce || r.Answer.Attempt != b.Attempts[i].Attempt) {
				t.Fatal("took an answer to another question")
			}
		}
	})
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte(`{"version":2,"nonce":"n1","attempt":"mount.tmpfs","outcome":"denied","steps":[{"what":"x","refusal":"EPERM"}]}`))
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
	f.Add([]byte(`{"version":2,"nonce":"a","attempt":"file.read","paths":["/etc"],"own":[{"first":1,"last":2}],"spare":[4026531840]}`))
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
