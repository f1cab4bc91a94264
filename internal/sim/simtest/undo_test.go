package simtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestUndoByHand interrupts the exchange of a VM around every single call, and in the
// windows of every hand-over, and then follows docs/notes/proxmox.md: the lines in the
// parking VM's notes, and what the document says comes after them. Nothing else is used,
// and nothing of recast.
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
	for _, owned := range ownerships() {
		for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback} {
			cells = append(cells, undoCell{strategy: strategy, shape: usualShape(owned, strategy)})
		}
	}
	stray := usualShape(bothDisks, cluster.Recreate)
	stray.orphan = true
	walled := usualShape(ownDisks, cluster.Recreate)
	walled.walled = true
	return append(cells, undoCell{strategy: cluster.Recreate, shape: stray}, undoCell{strategy: cluster.Recreate, shape: walled},
		undoCell{strategy: cluster.Recreate, shape: usualShape(ownDisks, cluster.Recreate).withPrepared(true)},
		undoCell{strategy: cluster.Reimage, shape: usualShape(bothDisks, cluster.Reimage).withPrepared(true)},
		undoCell{strategy: cluster.Recreate, shape: usualShape(ownDisks, cluster.Recreate), givenUp: vmDeleted},
		undoCell{strategy: cluster.Reimage, shape: usualShape(ownDisks, cluster.Reimage), givenUp: allAttached})
}

// undoCell is one kind of exchange of one VM.
type undoCell struct {
	strategy cluster.Strategy
	shape    matrixShape
	givenUp  string // the point at which recast itself begins to put everything back; "": never
	doc      undoDoc
}

func (c undoCell) String() string {
	name := matrixExchange{c.strategy, c.givenUp, c.shape}.String()
	if c.shape.orphan {
		name += "-stray"
	}
	if c.shape.walled {
		name += "-walled"
	}
	return name
}

// begin makes the lab and runs the exchange up to its starting point.
func (c undoCell) begin(l *matrixLab) {
	if c.givenUp != "" {
		l.killAt(c.strategy, c.givenUp)
		l.recorder.Hooks(nil, nil)
	}
}

// run records the calls of an undisturbed exchange, and interrupts others at each.
func (c undoCell) run(t *testing.T) {
	var calls []record.Call
	synctest.Test(t, func(t *testing.T) {
		l := newMatrixLab(t, c.shape)
		c.begin(l)
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
	if undone < tried/2 {
		t.Errorf("cut off in %d ways, and only %d times there was something to undo", tried, undone)
	}
	t.Logf("%d calls, cut off in %d ways, undone from %d states", len(calls), tried, undone)
}

// undoSlice is the default share of interruptions: 1 in that many.
const undoSlice = 20

// undoCuts are the ways in which a process ends around a call. A hand-over has two more,
// inside Proxmox.
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
	c.begin(l)
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
		if !l.running() {
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

// openNotes finds the parking VM of an unfinished exchange, as the document says.
func (l *matrixLab) openNotes() (park int, notes string) {
	for _, vm := range l.world.VMs() {
		if text := vm.Config["description"]; strings.Contains(text, `"open":true`) {
			return vm.ID, text
		}
	}
	return 0, ""
}

func (l *matrixLab) running() bool {
	vm, err := l.world.LookupVM(matrixHost, matrixVM)
	return err == nil && vm.Running
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
	t.Helper()
	b := readFile(t, undoDocument)
	_, text, found := strings.Cut(string(b), "\n## Undo by hand\n")
	if !found {
		t.Fatal("the document has no section Undo by hand")
	}
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
	if len(doc.functions) < 5 || doc.leftOver == "" || doc.unprotect == "" || doc.protect == "" || len(doc.spare) != 2 || len(doc.destroy) != 2 || doc.notesOf == "" {
		t.Fatalf("the document has too little to follow: %+v", doc)
	}
	return doc
}

// shellBlocks are the fenced blocks of a text.
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

// free frees the exchange's leftover on the VM, with its protection lifted if needed.
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
