package kubernetes

import (
	"strconv"
	"testing"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
)

// TestRoll rolls three control planes and two workers whose objects are in a real control
// plane, with a claim in Proxmox and with one in Kubernetes, and upgrades their Kubernetes
// to the next version.
func TestRoll(t *testing.T) {
	t.Parallel() // both mostly wait
	plane := plane.Start(t)
	u := startLab(t, plane, "--control-planes", "3", "--talos-version", "v1.14.1", "--kubernetes-version", before)
	s := &scene{user: u, t: t, plane: plane}
	for _, story := range []struct {
		name string
		tell func(*scene)
	}{
		{"recreate", (*scene).recreateAll},
		{"a claim in Kubernetes", (*scene).claimInKubernetes},
		{"someone deletes the claim", (*scene).claimDeleted},
		{"an upgrade that can't be", (*scene).upgradeRefused},
		{"an upgrade of Kubernetes", (*scene).upgradeKubernetes},
	} {
		told := t.Run(story.name, func(t *testing.T) {
			s.t, u.t = t, t
			story.tell(s)
		})
		if s.t, u.t = t, t; !told {
			return // the next one begins where this one should have ended
		}
	}
	u.must(0, "lab check --dir .", "persistent disks intact")
	t.Attr("commands", strconv.Itoa(u.count))
}

func (s *scene) recreateAll() {
	s.must(0, "drift", "5 nodes in sync")
	s.must(0, "lab patch qemu-guest-agent --dir .")
	s.must(0, "lock --update")
	s.must(2, "drift")
	s.must(0, "roll --yes")
	s.must(0, "drift", "5 nodes in sync")
}
