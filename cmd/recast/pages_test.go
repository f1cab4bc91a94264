package main

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// page is a Markdown file of this repository with its blocks of code.
type page struct {
	name   string // from the top of the repository
	text   string
	blocks []block
}

// block is one block of code of a page. What it is, is the word behind its fence:
//
//	sh                 typed in a lab, by TestPages
//	sh no-run          needs what no lab has; its commands of recast must exist
//	text               right behind an sh block: what that prints
//	yaml               of recast.yaml
//	yaml schematic     a file of the Image Factory
//	yaml talos         someone else's, and so are kubernetes and hcl
type block struct {
	info       string
	line       int // of its first line of code
	text       string
	start, end int // of its code in the page
	output     bool
}

var fence = regexp.MustCompile("(?m)^( *)```(.*)\n")

// parsePage splits a page into blocks.
func parsePage(name, text string) page {
	p := page{name: name, text: text}
	last := 0 // where the last block of shell ended, fence included
	for at := 0; ; {
		open := fence.FindStringSubmatchIndex(text[at:])
		if open == nil {
			return p
		}
		indent, info := text[at+open[2]:at+open[3]], text[at+open[4]:at+open[5]]
		b := block{info: info, start: at + open[1]}
		end := strings.Index(text[b.start:], indent+"```")
		if end < 0 {
			return p
		}
		b.end = b.start + end
		b.line = 1 + strings.Count(text[:b.start], "\n")
		b.text = strings.ReplaceAll("\n"+text[b.start:b.end], "\n"+indent, "\n")[1:]
		b.output = info == "text" && last > 0 && strings.TrimSpace(text[last:at+open[0]]) == ""
		at = b.end + len(indent) + len("```\n")
		last = 0
		if info == "sh" {
			last = at
		}
		p.blocks = append(p.blocks, b)
		if at >= len(text) {
			return p
		}
	}
}

// readPages reads every Markdown file of the documentation, except generated ones.
func readPages(t *testing.T) []page {
	t.Helper()
	const top = "../.."
	names := []string{"README.md", "CONTRIBUTING.md"}
	for _, dir := range []string{"docs", "examples", "testdata"} {
		err := fs.WalkDir(os.DirFS(top), dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && path.Ext(name) == ".md" && path.Dir(name) != "docs/reference" {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var pages []page
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, parsePage(name, string(text)))
	}
	return pages
}

// guides says whether the commands of a page are run in a lab: notes and decision
// records also show parts of commands.
func (p page) guides() bool {
	for _, dir := range []string{"docs/notes", "docs/adr", "docs/runbooks", "examples"} {
		if strings.HasPrefix(p.name, dir+"/") {
			return false
		}
	}
	return p.name != "CONTRIBUTING.md" && p.name != "docs/performance.md"
}

// shell returns the commands of a page, whether they run in a lab or not.
func (p page) shell() []block {
	return slices.DeleteFunc(slices.Clone(p.blocks), func(b block) bool {
		return b.info != "sh" && b.info != "sh no-run"
	})
}

func TestParsePage(t *testing.T) {
	t.Parallel()
	p := parsePage("p.md", "A\n\n```sh\nrecast plan\n```\n\n```text\nsays\n```\n\n1. B\n\n   ```yaml\n   a:\n     b\n   ```\n\n```text\nelse\n```\n```\nopen\n")
	type short struct {
		info, text string
		line       int
		output     bool
	}
	var got []short
	for _, b := range p.blocks {
		got = append(got, short{b.info, b.text, b.line, b.output})
	}
	want := []short{{"sh", "recast plan\n", 4, false}, {"text", "says\n", 8, true}, {"yaml", "a:\n  b\n", 14, false}, {"text", "else\n", 19, false}}
	if !slices.Equal(got, want) {
		t.Errorf("blocks %+v, want %+v", got, want)
	}
}
