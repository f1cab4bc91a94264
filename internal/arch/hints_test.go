package arch

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// destructive are commands that delete, detach, free, or break a lock.
var destructive = regexp.MustCompile(`qm destroy|qm set [^"]*--delete|qm unlock|qm delsnapshot|pvesm free|pvesr delete|remove-member|system-labels-to-wipe|kubectl delete|ha-manager remove|pveum acl delete|delete pod [^"]*--force`)

// advised are the functions and constants whose texts tell a person to run one, each with what shows that nothing uses
// the thing by then.
var advised = map[string]string{
	"cluster.HalfMade":                "a VM without a drive, after a look at its tasks",
	"cluster.Unlock":                  "after a look at its tasks; of a suspended VM it warns",
	"cluster.WithoutCustom":           "a setting",
	"cluster.RequireRemakeable":       "a setting of a VM that is off and is not deleted; it has no volume",
	"cluster.Unclaimed":               "the line shuts the VM down first, and the volume stays",
	"cluster/claim.deletion":          "VM.Bare, and a watch after which no run holds the claim",
	"cluster/etcd.Leftover":           "the member does not answer, after a look",
	"cluster/etcd.EmptyData":          "callers prove that no etcd uses the data; of EPHEMERAL after a look at the rest",
	"cluster/etcd.WipeByReset":        "used where the person wants to go back to a snapshot, after one of what is there; and where etcd has failed",
	"cluster/exchange.takeOut":        "the VM is off, and the volume stays with its owner",
	"cluster/exchange.onlyOnce":       "warns of the command",
	"cluster/kubeupgrade.members":     "once talosctl etcd status does not show the member",
	"cluster/observe.parkingsOf":      "once the Node is NotReady",
	"cluster/observe.goneForGood":     "the Node is not Ready",
	"cluster/parking.switchOff":       "each line asks first: lock and no volume, HA",
	"cluster/parking.finishMove":      "the line asks first: a volume that is gone",
	"cluster/parking.parkNew":         "the line asks first: the serial of the new disk",
	"cluster/parking.setCDs":          "a CD drive without a volume",
	"cluster/planning.againstRebuild": "once the Node is NotReady",
	"cluster/planning.giveUp":         "only what the run has made, of a VM that is off and has no Node",
	"cluster/roll.disksStay":          "after a look at what the machine has mounted; the volume stays with its owner",
	"cluster/rolling.otherMachine":    "once the Node is NotReady",
	"cluster/strategy.lines":          "slot.removable: another slot has the same volume",
	"cluster/strategy.occupied":       "named snapshots, which nothing that runs uses",
	"cluster/strategy.Tied":           "an ACL entry, with the line that gives it back",
	"cluster/strategy.Replicated":     "a replication job, with the line that makes it again",
	"cluster/strategy.unwritable":     "spared: settings that make no difference to Talos",
	"cluster/survey.noMember":         "the machine of the Node does not answer, after a look at its VM",
	"cmd/recast.newRebuildCmd":        "a Node whose VM is gone",
	"cmd/recast.newRestoreCmd":        "what the machine must be like before a restore",
	"images.replace":                  "mayReplace: no drive and no snapshot names the file",
	"internal/operator.podTrouble":    "a pod that ended, once its node is NotReady",
	"internal/operator.waits":         "an ImageRoll that waits for its approval",
	"internal/pve/api.hintLock":       "says when it is right: no task of the VM runs",
}

// TestHintsThatDelete: a text that tells a person to delete, detach or free something is listed, with the proof that
// nothing uses it.
func TestHintsThatDelete(t *testing.T) {
	t.Parallel()
	left := maps.Clone(advised)
	for _, s := range sources(t, false) {
		if s.test() || !strings.HasPrefix(s.pkg, "cluster") && !strings.HasPrefix(s.pkg, "pipeline") && !strings.HasPrefix(s.pkg, "cmd") && !strings.HasPrefix(s.pkg, "images") &&
			!strings.HasPrefix(s.pkg, "schematics") && !strings.HasPrefix(s.pkg, "internal") || slices.ContainsFunc([]string{"internal/sim", "internal/e2e", "internal/tools", "internal/contract", "internal/lab"}, func(p string) bool { return strings.HasPrefix(s.pkg, p) }) {
			continue
		}
		for _, d := range s.file.Decls {
			by := s.pkg + "." + declared(d)
			ast.Inspect(d, func(n ast.Node) bool {
				text, is := n.(*ast.BasicLit)
				if !is || text.Kind != token.STRING || !destructive.MatchString(text.Value) {
					return true
				}
				if advised[by] == "" {
					t.Errorf("%s:%d: %s advises %q: see that nothing uses the thing, or have the text look first, and say so in advised", s.path(), s.line(n.Pos()), by, destructive.FindString(text.Value))
				}
				delete(left, by)
				return true
			})
		}
	}
	for by := range left {
		t.Errorf("%s advises nothing of the kind", by)
	}
}

// declared is the first name that a declaration declares.
func declared(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		if v, is := d.Specs[0].(*ast.ValueSpec); is {
			return v.Names[0].Name
		}
	}
	return ""
}
