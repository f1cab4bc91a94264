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

// advised are the files whose texts tell a person to run one, each with what shows that nothing uses the thing by then.
var advised = map[string]string{
	"cluster/vm.go":                   "HalfMade: a VM without a drive, after a look at its tasks. Unlock: after that look; of a suspended VM it warns. WithoutCustom: a setting",
	"cluster/claim/state.go":          "VM.Bare, and a watch after which no run holds the claim",
	"cluster/etcd/view.go":            "Leftover: the member does not answer, after a look. EmptyData: callers prove that no etcd uses the data; of EPHEMERAL after a look at the rest",
	"cluster/exchange/drives.go":      "the VM is off, and the volume stays with its owner",
	"cluster/exchange/park.go":        "warns of the command",
	"cluster/kubeupgrade/plan.go":     "once talosctl etcd status does not show the member",
	"cluster/observe/found.go":        "once the Node is NotReady",
	"cluster/observe/observe.go":      "the Node is not Ready",
	"cluster/parking/undolines.go":    "each line asks for what it removes first: lock and no volume, HA, a volume that is gone, the serial of the new disk",
	"cluster/planning/undo.go":        "giveUp: only what the run has made, of a VM that is off and has no Node",
	"cluster/etcd/restore.go":         "used where the person wants to go back to a snapshot, after one of what is there; and where etcd has failed",
	"cluster/roll/eviction.go":        "after a look at what the machine has mounted; the volume stays with its owner",
	"cluster/strategy/doubled.go":     "slot.removable: another slot has the same volume",
	"cluster/strategy/refuse.go":      "named snapshots, which nothing that runs uses; an ACL entry, with the line that gives it back",
	"cmd/recast/nodes.go":             "a Node whose VM is gone",
	"cmd/recast/kubernetes.go":        "what the machine must be like before a restore",
	"internal/operator/attempts.go":   "a pod that ended, once its node is NotReady",
	"internal/operator/roll.go":       "an ImageRoll that waits for its approval",
	"cluster/volume.go":               "the line shuts the VM down first, and the volume stays",
	"cluster/survey/survey.go":        "the machine of the Node does not answer, after a look at its VM",
	"cluster/planning/remove.go":      "once the Node is NotReady",
	"cluster/strategy/refuseimage.go": "spared: settings that make no difference to Talos",
	"cluster/rolling/gate.go":         "once the Node is NotReady",
	"images/publish.go":               "mayReplace: no drive and no snapshot names the file",
	"internal/pve/api/error.go":       "says when it is right: no task of the VM runs",
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
		ast.Inspect(s.file, func(n ast.Node) bool {
			text, is := n.(*ast.BasicLit)
			if !is || text.Kind != token.STRING || !destructive.MatchString(text.Value) {
				return true
			}
			if advised[s.path()] == "" {
				t.Errorf("%s:%d advises %q: see that nothing uses the thing, or have the text look first, and say so in advised", s.path(), s.line(n.Pos()), destructive.FindString(text.Value))
			}
			delete(left, s.path())
			return true
		})
	}
	for path := range left {
		t.Errorf("%s advises nothing of the kind", path)
	}
}
