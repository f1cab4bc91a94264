package simtest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestUndoByHand interrupts the exchange of a VM around every single call, and in the windows of every hand-over, and
// then follows docs/notes/proxmox.md: the lines in the parking VM's notes, and what the document says comes after them.
// Nothing else is used, and nothing of recast.
func TestUndoByHand(t *testing.T) {
	long(t)
	doc := readUndoDoc(t)
	for _, c := range undoCells() {
		c.doc = doc
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

func undoCells() (cells []undoCell) {
	add := func(strategy cluster.Strategy, owned ownership, givenUp string, changes ...func(*matrixShape)) {
		x := matrixExchange{strategy, givenUp, usualShape(owned, strategy)}
		for _, change := range changes {
			change(&x.shape)
		}
		cells = append(cells, undoCell{matrixExchange: x})
	}
	for _, owned := range ownerships() {
		for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback} {
			add(strategy, owned, "")
		}
	}
	prepared := func(s *matrixShape) { s.prepared = true }
	add(cluster.Recreate, bothDisks, "", func(s *matrixShape) { s.orphan = true })
	add(cluster.Recreate, ownDisks, "", func(s *matrixShape) { s.walled = true })
	add(cluster.Recreate, ownDisks, "", prepared)
	add(cluster.Reimage, bothDisks, "", prepared)
	add(cluster.Recreate, ownDisks, vmDeleted)
	add(cluster.Reimage, ownDisks, allAttached)
	return cells
}

type undoCell struct {
	matrixExchange
	doc undoDoc
}

func (c undoCell) String() string {
	name := c.matrixExchange.String()
	if c.shape.orphan {
		name += "-stray"
	}
	if c.shape.walled {
		name += "-walled"
	}
	return name
}

func (c undoCell) run(t *testing.T) {
	var calls []record.Call
	synctest.Test(t, func(t *testing.T) {
		l := c.begin(t)
		before := len(l.recorder.Calls())
		ctx, life := l.live(t.Context())
		must(t, life.exchange(ctx, c.strategy, c.givenUp != ""))
		calls = slices.DeleteFunc(l.recorder.Calls()[before:], func(call record.Call) bool { return !call.Mutation })
	})
	undone, tried := 0, 0
	for i, call := range calls {
		for j, cut := range undoCuts(call) {
			if !*matrixAll && (i+j)%undoSlice != int(*matrixSeed)%undoSlice {
				continue
			}
			tried++
			synctest.Test(t, func(t *testing.T) {
				where := fmt.Sprintf("%s %d of %d, %s %s", cut.name, i+1, len(calls), call.Method, matrixPath(call))
				if c.undo(t, matrixStrike{cut, i + 1}, where) {
					undone++
				}
			})
		}
	}
	require(t, undone >= tried/2, "cut off in %d ways, and only %d times there was something to undo", tried, undone)
	t.Logf("%d calls, cut off in %d ways, undone from %d states", len(calls), tried, undone)
}

// undoSlice is the default share of interruptions: 1 in that many.
const undoSlice = 20

// undoCuts are the ways in which a process ends around a call. A hand-over has two more, inside Proxmox.
func undoCuts(call record.Call) []matrixFault {
	every := func(record.Call) bool { return true }
	cuts := []matrixFault{
		{name: "before", meets: every, before: func(life *matrixLife, _ record.Call) error { life.kill(); return errStruck }},
		{name: "after", meets: every, after: func(life *matrixLife, _ record.Call) { life.kill() }},
	}
	if taskOf(call) != "qmmove" {
		return cuts
	}
	inside := func(name string, stage world.MoveStage) matrixFault {
		return matrixFault{
			name: name, meets: every,
			before: func(life *matrixLife, _ record.Call) error { life.world.StopNextMove(stage, false); return nil },
			after:  func(life *matrixLife, _ record.Call) { life.kill() },
		}
	}
	return append(cuts, inside("renamed only", world.AfterRename), inside("named nowhere", world.AfterSource))
}

// undo interrupts one exchange and undoes it by hand; false if no record was open.
func (c undoCell) undo(t *testing.T, at matrixStrike, where string) bool {
	l := newMatrixLab(t, c.shape)
	before, parkedBefore := l.dump(), l.drivesOfParking()
	c.giveUp(l)
	ctx, life := l.live(t.Context())
	life.strike(at)
	_ = life.exchange(ctx, c.strategy, c.givenUp != "") // it was killed, or had nothing left to do
	l.recorder.Hooks(nil, nil)
	l.settle()
	fail := func(format string, args ...any) { t.Errorf("%s: %s", where, fmt.Sprintf(format, args...)) }
	park, notes := l.openNotes()
	if park == 0 {
		return false
	}
	sh := &undoShell{Shell: sim.Shell{World: l.world, Host: matrixHost}, functions: map[string]string{}}
	err := c.doc.follow(sh, notes, park, matrixVM, func() {
		if vm, err := l.vm(); err != nil || !vm.Running {
			fail("VM %d does not run", matrixVM)
		}
	})
	if err != nil {
		fail("%v\nafter:\n%s\nnotes:\n%s", err, strings.Join(sh.ran, "\n"), notes)
		return true
	}
	if err := l.world.PowerOff(matrixVM); err != nil {
		fail("%v", err)
	}
	if diff := cmp.Diff(withoutParking(before), withoutParking(l.dump())); diff != "" {
		fail("the VM is not what it was (-before +now):\n%s\nafter:\n%s\nnotes:\n%s", diff, strings.Join(sh.ran, "\n"), notes)
	}
	if diff := cmp.Diff(parkedBefore, l.drivesOfParking()); diff != "" {
		fail("the parking VM (-before +now):\n%s", diff)
	}
	if problems := slices.Concat(l.world.Violations(), l.unfreed(), l.sweep()); len(problems) > 0 {
		fail("%q", problems)
	}
	if _, notes := l.openNotes(); notes != "" {
		fail("the record is open still")
	}
	return true
}

func (l *matrixLab) openNotes() (park int, notes string) {
	for _, vm := range l.world.VMs() {
		if text := vm.Config["description"]; strings.Contains(text, `"open":true`) {
			return vm.ID, text
		}
	}
	return 0, ""
}

// drivesOfParking are the drives of the parking VM of an earlier exchange, without numbers of volumes.
func (l *matrixLab) drivesOfParking() map[string]string {
	drives := map[string]string{}
	for _, vm := range l.world.VMs() {
		if !l.isParking(vm.ID) {
			continue
		}
		for key, value := range vm.Config {
			if cluster.IsDiskKey(key) {
				drives[fmt.Sprintf("%d %s", vm.ID, key)] = regexp.MustCompile(`-disk-\d+`).ReplaceAllString(value, "-disk-*")
			}
		}
	}
	return drives
}

// undoDoc is the part of docs/notes/proxmox.md that the test uses.
type undoDoc struct {
	functions map[string]string // bodies in the document, by name
	leftOver  string            // command for leftovers of the exchange on the VM
	unprotect string            // commands around it for a protected VM
	protect   string
	spare     []string // commands for leftovers on the parking VM
	destroy   []string // commands for an empty parking VM
	notesOf   string   // edit for one that keeps a disk
}

const undoDocument = "../../../docs/notes/proxmox.md"

func readUndoDoc(t *testing.T) undoDoc {
	_, text, found := strings.Cut(string(readFile(t, undoDocument)), "\n## Undo by hand\n")
	mustBe(t, found, "the document has no section Undo by hand")
	text, _, _ = strings.Cut(text, "\n## ")
	doc := undoDoc{functions: map[string]string{}}
	for _, block := range shellBlocks(text) {
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			m := undoFunction.FindStringSubmatch(line)
			switch {
			case m != nil:
				doc.functions[m[1]] = line
			case strings.HasPrefix(line, "qm set PARKING --delete "):
				doc.spare = append(doc.spare, line)
			case strings.Contains(line, "--delete unusedN"):
				doc.leftOver = line
			case strings.HasPrefix(line, "qm set VMID --protection 0"):
				doc.unprotect = line
			case strings.HasPrefix(line, "qm set VMID --protection 1"):
				doc.protect = line
			case slices.Contains(doc.destroy, line):
			case strings.Contains(line, "PARKING") && !strings.Contains(line, "config") && !strings.HasPrefix(line, "pvesm"):
				doc.destroy = append(doc.destroy, line)
			}
		}
	}
	if m := regexp.MustCompile("Change `(.*)` to `(.*)` in the last line").FindStringSubmatch(text); m != nil {
		doc.notesOf = m[1] + " → " + m[2]
	}
	mustBe(t, len(doc.functions) >= 5 && doc.leftOver != "" && doc.unprotect != "" && doc.protect != "" &&
		len(doc.spare) == 2 && len(doc.destroy) == 2 && doc.notesOf != "", "the document has too little to follow: %+v", doc)
	return doc
}

func shellBlocks(text string) (blocks []string) {
	for {
		_, rest, found := strings.Cut(text, "```sh\n")
		if !found {
			return blocks
		}
		block, after, _ := strings.Cut(rest, "```")
		blocks = append(blocks, block)
		text = after
	}
}

// follow does what the section says, to its end.
func (d undoDoc) follow(sh *undoShell, notes string, park, vm int, started func()) error {
	blocks := shellBlocks(notes)
	if len(blocks) != 1 || strings.Count(blocks[0], "\n") < 6 {
		return fmt.Errorf("the notes hold no commands")
	}
	for range 2 { // a careful person repeats it
		sh.functions = map[string]string{}
		if err := sh.script(blocks[0]); err != nil {
			return err
		}
	}
	for name, body := range sh.functions {
		if d.functions[name] != body {
			return fmt.Errorf("the document does not explain %s", body)
		}
	}
	started()
	_, had, found := strings.Cut(blocks[0], "# unusedN before: ")
	if !found {
		return fmt.Errorf("the notes do not say which volumes were unused before")
	}
	for _, m := range sh.matches([]string{"qm", "config", fmt.Sprint(vm)}, `^(unused\d+): `) {
		if !slices.Contains(strings.Split(strings.TrimSpace(had), ", "), m[1]) {
			if err := d.free(sh, vm, m[1]); err != nil {
				return err
			}
		}
	}
	if err := d.freeSpare(sh, notes, park); err != nil {
		return err
	}
	return d.end(sh, park)
}

// freeSpare frees the exchange's leftover on the parking VM, if any.
func (d undoDoc) freeSpare(sh *undoShell, notes string, park int) error {
	m := regexp.MustCompile(`"spare":"(\w+)"`).FindStringSubmatch(notes)
	if m == nil || len(sh.matches([]string{"qm", "config", fmt.Sprint(park)}, "^"+m[1]+": ")) == 0 {
		return nil
	}
	line := strings.NewReplacer("PARKING", fmt.Sprint(park), "SPARE", m[1])
	if err := sh.script(line.Replace(d.destroy[0] + "\n" + d.spare[0])); err != nil {
		return err
	}
	for _, unused := range sh.matches([]string{"qm", "config", fmt.Sprint(park)}, `^(unused\d+): `) {
		if err := sh.script(strings.ReplaceAll(line.Replace(d.spare[1]), "unusedN", unused[1])); err != nil {
			return err
		}
	}
	return nil
}

func (d undoDoc) free(sh *undoShell, vm int, key string) error {
	line := strings.NewReplacer("VMID", fmt.Sprint(vm), "unusedN", key)
	err := sh.script(line.Replace(d.leftOver))
	if err == nil || !strings.Contains(err.Error(), "protection mode enabled") {
		return err
	}
	return sh.script(line.Replace(d.unprotect + "\n" + d.leftOver + "\n" + d.protect))
}

// end deletes the parking VM, or closes its record if it keeps a disk.
func (d undoDoc) end(sh *undoShell, park int) error {
	kept := slices.DeleteFunc(sh.matches([]string{"qm", "config", fmt.Sprint(park)}, `^([a-z]+\d+): `), func(m []string) bool { return !cluster.IsDiskKey(m[1]) })
	if len(kept) == 0 {
		return sh.script(strings.ReplaceAll(strings.Join(d.destroy, "\n"), "PARKING", fmt.Sprint(park)))
	}
	was, is, _ := strings.Cut(d.notesOf, " → ")
	vm, err := sh.World.LookupVM(sh.Host, park)
	if err != nil {
		return err
	}
	notes := strings.TrimSpace(vm.Config["description"])
	at := strings.LastIndex(notes, "\n") + 1
	if !strings.Contains(notes[at:], was) {
		return fmt.Errorf("VM %d keeps %v, but its last line lacks %s", park, kept, was)
	}
	edited := notes[:at] + strings.Replace(notes[at:], was, is, 1)
	return sh.World.SetConfig("root@pam", sh.Host, world.ChangeRequest{ID: park, Set: map[string]string{"description": edited}})
}

// undoShell runs the lines of the manual undo like a Proxmox host's shell, with a small subset: functions with the
// document's bodies, conditions and commands joined by &&, quotes, and the output of functions as part of a word. The
// output of the functions is as the document says.
type undoShell struct {
	sim.Shell
	functions map[string]string // bodies by name
	ran       []string          // commands that changed something
	said      string            // output of the latest command
}

var undoFunction = regexp.MustCompile(`^([a-z]+)\(\) \{.*\}$`)

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

func firewallFile(path string) int {
	id, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(path, "/etc/pve/firewall/"), ".fw"))
	return id
}

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
		return "", (len(sh.matches([]string{"qm", "config", arg(1)}, "^"+arg(2))) > 0) == (words[0] == "has"), nil
	case "ha":
		return "", len(sh.matches([]string{"ha-manager", "config"}, "^vm:"+arg(1)+"$")) > 0, nil
	case "gone":
		storage, _, _ := strings.Cut(arg(1), ":")
		listed := sh.matches([]string{"pvesm", "list", storage}, `^\S+`)
		return "", len(listed) > 0 && !slices.ContainsFunc(listed, func(m []string) bool { return m[0] == arg(1) }), nil
	case "key", "vol":
		expression := "^" + arg(2) + ": ([^,]*)"
		if words[0] == "key" {
			expression = `^(unused\d+): ` + regexp.QuoteMeta(arg(2)) + "$"
		}
		for _, m := range sh.matches([]string{"qm", "config", arg(1)}, expression) {
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

// tokenEnd is the length of a line's first token: quoted, "$(a command)", escaped, or one character.
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

// TestUndoRollByHand: a worker whose roll was killed boots its old system again, and the next roll rolls it.
func TestUndoRollByHand(t *testing.T) {
	long(t)
	doc := readUndoDoc(t)
	for _, at := range []moment{after("park/scsi1"), after("delete-vm"), after("bring-up/start"), before("finish/keep")} {
		t.Run(at.String(), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				resumption{strategy: cluster.Recreate}.prepare(lab)
				old := lab.builds()
				lab.as(firstRun).rollKilled(at, onlyWorker)
				park := lab.parkingID(t)
				vm := lab.vm(park)
				sh := &undoShell{Shell: lab.Shell("pve1")}
				must(t, doc.follow(sh, vm.Config["description"], park, 9031, func() {}))
				lab.World.Delay(3 * time.Minute) // it boots
				requireSame(t, old, lab.builds(), "builds")
				lab.RequireIntact()
				lab.as(secondRun).rollTo(t, onlyWorker, "cp1")
				lab.requireKept(1)
			})
		})
	}
}
