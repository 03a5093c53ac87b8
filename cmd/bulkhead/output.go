package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/terminal"
	"bulkhead/internal/wire"
)

// printJSON writes one document, indented for people who look.
func (a *app) printJSON(v any) error { return a.encode(v, "  ") }

// encode writes one JSON document. Controls that encoding/json passes on (DEL,
// C1, bidirectional ones) are escaped, which loses nothing: JSON is printed to
// terminals too.
func (a *app) encode(v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, c := range b.String() {
		if c == '\n' || terminal.Printable(c) {
			out.WriteRune(c)
			continue
		}
		fmt.Fprintf(&out, `\u%04x`, c)
	}
	_, err := io.WriteString(a.out, out.String())
	return err
}

// progress shows what the warden does, on the error stream, so that the output
// stays the result alone.
func (a *app) progress(p wire.Progress) {
	if a.json {
		return
	}
	who := ""
	if p.Agent != "" {
		who = terminal.Line(p.Agent) + ": "
	}
	fmt.Fprintln(a.err, "  "+who+terminal.Line(p.Step))
}

// table is rows of cells, aligned by their widest.
type table struct {
	head []string
	rows [][]cell
}

// cell is text and the colour that it has on a terminal.
type cell struct {
	text  string
	paint string // an SGR code, or ""
}

const (
	green  = "32"
	yellow = "33"
	red    = "31"
	faint  = "2"
)

func plain(s string) cell { return cell{text: s} }

func (t *table) add(cells ...cell) {
	for i := range cells {
		cells[i].text = terminal.Line(cells[i].text)
	}
	t.rows = append(t.rows, cells)
}

// write prints the table; the last column is never padded.
func (t *table) write(w io.Writer, colour bool) {
	width := make([]int, len(t.head))
	for i, h := range t.head {
		width[i] = utf8.RuneCountInString(h)
	}
	for _, r := range t.rows {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c.text))
		}
	}
	line := func(cells []cell) {
		var b strings.Builder
		for i, c := range cells {
			text := c.text
			if colour && c.paint != "" && text != "" {
				text = "\x1b[" + c.paint + "m" + text + "\x1b[0m"
			}
			b.WriteString(text)
			if i < len(cells)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	head := make([]cell, len(t.head))
	for i, h := range t.head {
		head[i] = cell{h, faint}
	}
	line(head)
	for _, r := range t.rows {
		line(r)
	}
}

// next says what to do now, at the end of what a person reads.
func (a *app) next(lines ...string) {
	fmt.Fprintln(a.out)
	for i, l := range lines {
		start := "      "
		if i == 0 {
			start = "Next: "
		}
		fmt.Fprintln(a.out, start+l)
	}
}

// bytesOf shows a size as people say it.
func bytesOf(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	case n > 0:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return "-"
}
