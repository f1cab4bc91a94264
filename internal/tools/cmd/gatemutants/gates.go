package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// room is a package with gates. A function whose name begins with require is a gate by
// its name; these are the others, as "function" or "Type.method", and tables by their variable.
type room struct {
	dir    string
	tables string // the tests that are made for it, which run first: a regular expression
	gates  string
}

// rooms are all packages that decide what is deleted, created, handed over or applied.
var rooms = []room{
	{"cluster/replica", "^TestMemo|^TestHolding", `Memo.With Memo.Without System.Holding`},
	{"cluster/exchange", "^TestReplace", `
		Replace.deleteVM Replace.deleteSame Replace.changedSince
		Replace.isReplaced Replace.nowBoth Replace.found Replace.KeepOff Replace.giveUp
		mover.once mover.handable mover.both mover.dropDangling mover.findUnnamed
		Replace.attach Replace.attached Replace.detach Replace.park Replace.onlyOnce Replace.notParked Replace.emptied
		parkedDisk IsParked isDetached ChangeRecord openRecord.read
		Replace.create Replace.createVM Replace.newConfig Replace.oldConfig Replace.marked Replace.systemDisk
		Replace.systemGiven Replace.hasSystem Replace.giveBlank Replace.systemNow Replace.setUp Replace.restoreSystem
		Replace.isPrepared Replace.prepareDisk Replace.importImage Replace.growPrepared Replace.givePrepared
		Replace.newToPark Replace.ParkNew Replace.copyFirewall Replace.StandsStill
		Replace.compareDisks Replace.missingDrives Replace.addedDrives ReadOthers
		KeptRef.Find KeptRef.look KeptRef.Free KeptRef.forget
		Replace.reshaped Replace.toReshape Replace.reshape Replace.migrated Replace.migrate
		Remember OpenParking`},
	{"cluster/rolling", "^TestGate|^TestImages", `
		Node.Parking Published.find
		Node.CheckGate Node.look Node.awaitLate Node.ownParkings Node.otherParkings Node.leavingNow Node.bindings`},
	{"cluster/parking", ".", "Memory.WrongBlank"},
	{"cluster/roll", "^TestGate|^TestRehearse", `
		etcdMember.mayLeave node.checkBlank node.configureBlank node.configureReset applyConfig.check applyConfig.shown savedConfig.read savedConfig.userConfig
		node.start node.replacementOut node.leaveAsReplacement node.backOut node.opened node.takenDown record.with
		serving.migrate serving.moveTo serving.migratable serving.lacks
		ScratchPruner.read ScratchPruner.deleteStopped ScratchPruner.against trial.judge trial.create trial.on`},
	{"cluster/shape", "^TestSettle", "Migratable localVolumes"},
	{"cluster/etcd", "^TestFind", "FindTarget Source.Require"},
	{"cluster/kubeupgrade", ".", ""},
	{"cluster/survey", ".", ""},
	{"cluster", "^TestRequire|^TestStrategies", `RequireQuorum RequireRemakeable Build.CheckBooted rows`},
}

// names are the gates that are not named so.
func (r room) names() map[string]bool {
	names := map[string]bool{}
	for _, name := range strings.Fields(r.gates) {
		names[name] = true
	}
	return names
}

var gateDecl = regexp.MustCompile(`(?m)^func (\(\w+ \*?\w+\) )?require[A-Z]`)

// everyGateHasARoom says which package below cluster has a gate by its name and is no room.
func everyGateHasARoom(root string) error {
	return filepath.WalkDir(filepath.Join(root, "cluster"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !gateDecl.Match(text) {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil || slices.ContainsFunc(rooms, func(r room) bool { return r.dir == filepath.ToSlash(dir) }) {
			return err
		}
		return fmt.Errorf("%s has a gate, and %s is no room of internal/tools/cmd/gatemutants/gates.go", path, dir)
	})
}
