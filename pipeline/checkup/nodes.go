package checkup

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
)

// nodes reports for each node which strategies are possible.
func (d *checkup) nodes() {
	for _, err := range d.survey.Shared {
		d.fail(GroupNodes, "VMs", err)
	}
	for i, a := range d.res.Nodes {
		if err := d.survey.Unread[i]; err != nil {
			d.unreadNode(a, err)
		}
		if err := strategy.Uncontrolled(d.survey.Found[i].Node); err != nil {
			d.fail(GroupNodes, a.Node, fault.WithHint(err, "remove it from recast.yaml: recast leaves it alone then"))
			continue
		}
		d.node(a)
	}
}

// unreadNode reports a node that could not be read; as a problem only if it does not
// follow from another one.
func (d *checkup) unreadNode(a survey.Assessment, err error) {
	blind := slices.ContainsFunc(d.missing.Lacks, func(l survey.Lack) bool { return l.Privilege == "VM.Audit" })
	switch {
	case blind && a.VMID == 0:
		d.warn(GroupNodes, a.Node, "", "its VM can't be seen without VM.Audit on /vms")
	case fault.KindOf(err) == fault.Refused && len(d.missing.Lacks) > 0, d.survey.Kubernetes != nil:
		d.warn(GroupNodes, a.Node, "", "%s", err)
	default:
		d.fail(GroupNodes, a.Node, err)
	}
}

func (d *checkup) node(a survey.Assessment) {
	switch {
	case a.Strategy.From() == cluster.Nowhere && len(a.Refused) > 0:
		d.refuse(GroupNodes, a.Node, "", "%s", strings.Join(a.Refused, "; "))
		return
	case a.Strategy.From() == cluster.Nowhere:
		d.ok(GroupNodes, a.Node, "a new VM on %s: %s", a.Host, a.Why)
		return
	case a.VMID == 0:
		return // reported already
	}
	vm := fmt.Sprintf("VM %d on %s", a.VMID, a.Host)
	switch {
	case a.Unread && len(a.Refused) > 0:
		d.refuse(GroupNodes, a.Node, "", "%s: its machine could not be read; %s", vm, strings.Join(a.Refused, "; "))
	case a.Unread:
		d.warn(GroupNodes, a.Node, "", "%s: its machine could not be read%s", vm, against(a))
	case len(a.Refused) > 0:
		d.refuse(GroupNodes, a.Node, "", "%s: %s", vm, strings.Join(a.Refused, "; "))
	default:
		notes := ""
		if more := slices.Concat(a.WillLose, a.Notes); len(more) > 0 {
			notes = "; " + strings.Join(more, "; ")
		}
		d.ok(GroupNodes, a.Node, "%s: %s%s", vm, a.Why, notes)
	}
}

// against lists what rules out which strategy, for a node that could not be read.
func against(a survey.Assessment) string {
	var out strings.Builder
	for _, s := range cluster.Strategies {
		if s.Replaces() && len(a.Against[s]) > 0 {
			fmt.Fprintf(&out, "; against %s: %s", s, strings.Join(a.Against[s], "; "))
		}
	}
	return out.String()
}
