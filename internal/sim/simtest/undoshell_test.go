package simtest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// undoShell runs the lines of the manual undo like a Proxmox host's shell, with a small
// subset: functions with the document's bodies, conditions and commands joined by &&,
// quotes, and the output of functions as part of a word. The output of the functions is as
// the document says.
type undoShell struct {
	sim.Shell
	functions map[string]string // bodies by name
	ran       []string          // commands that changed something
	said      string            // output of the latest command
}

var undoFunction = regexp.MustCompile(`^([a-z]+)\(\) \{.*\}$`)

// script runs lines in order and stops at the first failure.
func (sh *undoShell) script(text string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := undoFunction.FindStringSubmatch(line); m != nil {
			sh.functions[m[1]] = line
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := sh.line(line); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

func (sh *undoShell) line(line string) error {
	for _, command := range splitOutside(line, " && ") {
		words, err := sh.words(command)
		if err != nil {
			return err
		}
		if goOn, err := sh.run(words); err != nil || !goOn {
			return err
		}
	}
	return nil
}

// run runs one command; goOn is the result of a condition.
func (sh *undoShell) run(words []string) (goOn bool, err error) {
	switch words[0] {
	case "sleep":
		d, err := time.ParseDuration(words[1] + "s")
		time.Sleep(d)
		return true, err
	case "test": // ! -e FILE
		f := sh.World.FirewallOf(firewallFile(words[3]))
		return len(f.Options)+len(f.Aliases)+len(f.IPSets)+len(f.Rules) == 0, nil
	case "cp":
		sh.World.SetFirewall(firewallFile(words[2]), sh.World.FirewallOf(firewallFile(words[1])))
		sh.ran = append(sh.ran, strings.Join(words, " "))
		return true, nil
	case "qm", "ha-manager", "pvesh", "pvesm":
		sh.said, err = sh.Run(words)
		if err == nil && words[1] != "config" && words[1] != "list" {
			sh.ran = append(sh.ran, strings.Join(words, " "))
		}
		return err == nil, err
	}
	said, goOn, err := sh.call(words)
	sh.said = said
	return goOn, err
}

// firewallFile is the VMID in a firewall file's path; 0: it is no such file.
func firewallFile(path string) int {
	id, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(path, "/etc/pve/firewall/"), ".fw"))
	return id
}

// call runs one of the functions.
func (sh *undoShell) call(words []string) (said string, ok bool, err error) {
	if sh.functions[words[0]] == "" && words[0] != "printf" {
		return "", false, fmt.Errorf("%s: command not found", words[0])
	}
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch words[0] {
	case "has", "lacks":
		found := sh.matches([]string{"qm", "config", arg(1)}, "^"+arg(2))
		return "", (len(found) > 0) == (words[0] == "has"), nil
	case "ha":
		return "", len(sh.matches([]string{"ha-manager", "config"}, "^vm:"+arg(1)+"$")) > 0, nil
	case "gone":
		storage, _, _ := strings.Cut(arg(1), ":")
		listed := sh.matches([]string{"pvesm", "list", storage}, `^\S+`)
		return "", len(listed) > 0 && !slices.ContainsFunc(listed, func(m []string) bool { return m[0] == arg(1) }), nil
	case "key":
		for _, m := range sh.matches([]string{"qm", "config", arg(1)}, `^(unused\d+): `+regexp.QuoteMeta(arg(2))+"$") {
			return m[1], true, nil
		}
		return "", true, nil
	case "vol":
		for _, m := range sh.matches([]string{"qm", "config", arg(1)}, "^"+arg(2)+": ([^,]*)") {
			return m[1], true, nil
		}
		return "", true, nil
	case "lost":
		var lost []string
		for _, m := range sh.matches([]string{"qm", "disk", "rescan", "--vmid", arg(1), "--dryrun", "1"}, "add unreferenced volume '("+arg(2)+":.*)' as") {
			if !strings.Contains("\n"+arg(3)+"\n", "\n"+m[1]+"\n") {
				lost = append(lost, m[1])
			}
		}
		return strings.Join(lost, "\n"), len(lost) > 0, nil
	case "printf": // %b: the escapes that the lines use
		return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\0045`, "%").Replace(arg(2)), true, nil
	}
	return "", false, fmt.Errorf("%s: not a function of the document", words[0])
}

// matches finds an expression in the lines that a command prints.
func (sh *undoShell) matches(command []string, expression string) (found [][]string) {
	out, err := sh.Run(command)
	if err != nil {
		return nil
	}
	re := regexp.MustCompile(expression)
	for line := range strings.Lines(out) {
		if m := re.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			found = append(found, m)
		}
	}
	return found
}

// splitOutside splits a line at separators outside of quotes.
func splitOutside(line, separator string) (parts []string) {
	start := 0
	for i := 0; i < len(line); {
		switch {
		case strings.HasPrefix(line[i:], separator):
			parts = append(parts, line[start:i])
			i += len(separator)
			start = i
		default:
			i += tokenEnd(line[i:])
		}
	}
	return append(parts, line[start:])
}

// tokenEnd is the length of a line's first token: a quoted text, the output of a command
// in double quotes, an escaped character, or any other one.
func tokenEnd(s string) int {
	switch {
	case strings.HasPrefix(s, `"$(`):
		for i := len(`"$(`); i < len(s); {
			if strings.HasPrefix(s[i:], `)"`) {
				return i + 2
			}
			i += tokenEnd(s[i:])
		}
	case s[0] == '\'' || s[0] == '"':
		if end := strings.IndexByte(s[1:], s[0]); end >= 0 {
			return end + 2
		}
	case s[0] == '\\' && len(s) > 1:
		return 2
	default:
		return 1
	}
	return len(s)
}

// words splits a command: 'literal', "with $(a function's output)", \' and plain words.
func (sh *undoShell) words(command string) ([]string, error) {
	var words []string
	for _, raw := range splitOutside(strings.TrimSpace(command), " ") {
		var b strings.Builder
		for rest := raw; rest != ""; {
			token := rest[:tokenEnd(rest)]
			rest = rest[len(token):]
			switch inner, substituted := strings.CutPrefix(token, `"$(`); {
			case substituted:
				command, err := sh.words(strings.TrimSuffix(inner, `)"`))
				if err != nil {
					return nil, err
				}
				said, _, err := sh.call(command)
				if err != nil {
					return nil, err
				}
				b.WriteString(strings.TrimRight(said, "\n"))
			case len(token) == 1:
				b.WriteString(token)
			case token[0] == '\\':
				b.WriteString(token[1:])
			default:
				b.WriteString(token[1 : len(token)-1])
			}
		}
		words = append(words, b.String())
	}
	return words, nil
}

// TestUndoRollByHand kills the roll of a worker and restores it by hand: it boots its old
// system and is a healthy node again. The next roll finds nothing to finish and rolls it
// again.
func TestUndoRollByHand(t *testing.T) {
	long(t)
	doc := readUndoDoc(t)
	for _, at := range []moment{after("park/scsi1"), after("delete-vm"), after("bring-up/start"), before("finish/keep")} {
		t.Run(at.String(), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				resumption{strategy: cluster.Recreate}.prepare(lab)
				old := lab.builds()
				only := planning.Policy{Only: []string{"wk1"}}
				lab.as(firstRun).rollKilled(at, only)
				park := lab.parkingID(t)
				vm := lab.vm(park)
				sh := &undoShell{Shell: lab.Shell("pve1")}
				must(t, doc.follow(sh, vm.Config["description"], park, 9031, func() {}))
				lab.World.Delay(3 * time.Minute) // it boots
				requireSame(t, old, lab.builds(), "builds")
				lab.RequireIntact()
				must(t, lab.as(secondRun).roll(only)(t.Context()))
				requireDrift(t, lab, "cp1")
				lab.requireKept(1)
				lab.RequireIntact()
			})
		})
	}
}
