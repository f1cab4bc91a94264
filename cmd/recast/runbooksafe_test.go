package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// Wiping a machine without labels loses its configuration with the system disk, or keeps
// etcd's data, and then its member never joins again.
func TestEveryResetNamesItsLabels(t *testing.T) {
	t.Parallel()
	bare := regexp.MustCompile(`(?i)talosctl [^\n]*\breset\b|\breset (?:its|that|the|this) (?:machine|node)`)
	for _, p := range readPages(t) {
		if strings.HasPrefix(p.name, "docs/adr/") {
			continue
		}
		for line := range strings.Lines(p.text) {
			if bare.MatchString(line) && !strings.Contains(line, "--system-labels-to-wipe") {
				t.Errorf("%s: %s", p.name, strings.TrimSpace(line))
			}
		}
	}
	for _, line := range []string{"`talosctl reset` of it", "talosctl -n CP1 reset --reboot", "remove it, reset its machine"} {
		if !bare.MatchString(line) {
			t.Errorf("%q passes", line)
		}
	}
}

// A member of etcd must never come back with old data.
func TestNoPageBringsOldEtcdBack(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		before, after, restores := strings.Cut(p.text, "qmrestore")
		if restores && (!strings.Contains(after, "remove-member") || strings.Contains(before, "remove-member")) {
			t.Errorf("%s restores a VM and does not say what to do about its etcd member", p.name)
		}
	}
}

// VMID is a node's VM on all pages.
func TestNoPageDestroysANodesVM(t *testing.T) {
	t.Parallel()
	for _, p := range readPages(t) {
		if strings.Contains(p.text, "qm destroy VMID") && p.name != "docs/notes/proxmox.md" {
			t.Errorf("%s has qm destroy VMID", p.name)
		}
	}
}

// No page advises a command that frees volumes of a node for good.
func TestNoPageFreesAnUnusedDisk(t *testing.T) {
	t.Parallel()
	frees := regexp.MustCompile(`(?m)^\s*qm set .*--delete unused`)
	for _, p := range readPages(t) {
		if frees.MatchString(p.text) && p.name != "docs/notes/proxmox.md" {
			t.Errorf("%s: %s", p.name, frees.FindString(p.text))
		}
	}
}

// A page can't know how far a run got: if its code can occur while a node is down, the
// safe: line of that run takes precedence.
func TestPagesPromiseNoMoreThanTheRun(t *testing.T) {
	t.Parallel()
	const counts = "The `safe:` line of your run takes precedence over this page."
	promise := regexp.MustCompile(`(?i)not touched|nothing was (?:done|touched)|(?:was|were) (?:never |not )?(?:touched|changed)|every disk is|all persistent disks`)
	risky := riskyCodes(t)
	// These occur inside the steps of others, or have no risk of their own.
	for _, code := range []fault.Code{fault.NoJoin, fault.VMLocked, fault.UUIDMismatch, fault.RolledBackByItself} {
		risky[code] = true
	}
	for code := range risky {
		_, safe, _ := strings.Cut(pageText(t, code), "\n## What is safe\n\n")
		safe, _, _ = strings.Cut(safe, "\n## ")
		if promise.MatchString(safe) && !strings.HasPrefix(safe, counts) {
			t.Errorf("docs/runbooks/%s.md promises too much: %s", code, safe)
		}
	}
	if len(risky) < 9 || !risky[fault.EtcdUnhealthy] || !risky[fault.UpgradeStuck] {
		t.Errorf("only %v are codes of steps with a risk", risky)
	}
}

func pageText(t *testing.T, code fault.Code) string {
	t.Helper()
	return repositoryFile(t, "docs/runbooks/"+string(code)+".md")
}

// riskyCodes are the codes of steps that may interrupt a node, or remove something of it.
func riskyCodes(t *testing.T) map[fault.Code]bool {
	t.Helper()
	files, err := filepath.Glob("../../cluster/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	byName := codesByName(t)
	found := map[fault.Code]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			names := map[string]string{}
			for _, e := range lit.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if s, ok := kv.Value.(*ast.SelectorExpr); ok {
						if key, ok := kv.Key.(*ast.Ident); ok {
							names[key.Name] = s.Sel.Name
						}
					}
				}
			}
			if code := byName[names["Code"]]; code != "" && (names["Risk"] == "Disruptive" || names["Risk"] == "Destructive") {
				found[code] = true
			}
			return true
		})
	}
	return found
}

// codesByName maps the names of the constants to their codes.
func codesByName(t *testing.T) map[string]fault.Code {
	t.Helper()
	found := map[string]fault.Code{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+)\s+Code = "([a-z0-9-]+)"`).FindAllStringSubmatch(repositoryFile(t, "internal/fault/code.go"), -1) {
		found[m[1]] = fault.Code(m[2])
	}
	return found
}
