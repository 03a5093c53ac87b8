package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// conversation is what is read of a request, whatever API it came by.
type conversation struct {
	Model   string
	Stream  bool
	Entries int               // messages, or items of an input
	Said    []string          // by the user, in order
	Results []string          // of tool calls, in order
	Tools   map[string]string // offered to the model: name to type
}

// answer is a tool call, or the final text.
type answer struct {
	Tool, Arguments string
	Kind            string // of the tool, as it was offered
	Text            string
}

// call is one line of a script. Some agents write a time or a name before the
// user's first line.
var call = regexp.MustCompile(`(?m)^.*?\bCALL (\S+) (\{.*\})\s*$`)

// answer finds the first scripted call without a result. Agents also ask for
// titles and summaries, without offering tools: those get text.
func (c *conversation) answer() answer {
	calls := call.FindAllStringSubmatch(strings.Join(c.Said, "\n"), -1)
	if len(c.Results) >= len(calls) {
		return answer{Text: "FINAL: " + strings.Join(c.Results, " | ")}
	}
	next := calls[len(c.Results)]
	kind, offered := c.Tools[next[1]]
	if !offered || !json.Valid([]byte(next[2])) {
		return answer{Text: "FINAL: the script calls " + next[1] + ", of the tools " + strings.Join(c.toolNames(), ", ")}
	}
	return answer{Tool: next[1], Arguments: next[2], Kind: kind}
}

func (c *conversation) toolNames() []string {
	names := []string{}
	for n := range c.Tools {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// content is a message's text: a string, or a list of parts.
type content struct{ parts []part }

// part is a piece of a message. In messages of Anthropic's API results of
// tools are parts of what the user says.
type part struct {
	Type    string  `json:"type"`
	Text    string  `json:"text"`
	Content content `json:"content"`
}

// UnmarshalJSON takes both forms, and null.
func (c *content) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		c.parts = []part{{Type: "text", Text: s}}
		return nil
	}
	return json.Unmarshal(b, &c.parts)
}

// text is everything that the parts say.
func (c content) text() string {
	var texts []string
	for _, p := range c.parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
		if inner := p.Content.text(); inner != "" {
			texts = append(texts, inner)
		}
	}
	return strings.TrimSpace(strings.Join(texts, "\n"))
}
