package planning

import (
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
)

// preparedOutage is that of a node whose new system disk was prepared: without the 63 s of a boot from
// the ISO's menu, the pull and the installation, and a second boot.
const preparedOutage = 3 * time.Minute

// longOutage is shortly before storage systems begin to rebuild replicas: Longhorn does after
// 10 minutes (replica-replenishment-wait-interval).
const longOutage = 8 * time.Minute

// Estimate expects the median of the node's latest rolls by the same strategy, or else that of
// others of its role, or else the assumed value.
func (n *NodePlan) Estimate(past []cluster.Took) {
	n.OutageSeconds, n.WholeSeconds, n.OutageFrom = int(n.Strategy.Outage().Seconds()), 0, ""
	if n.Prepared != "" {
		n.OutageSeconds = int(preparedOutage.Seconds())
	}
	if n.Strategy == "" || n.Resume {
		return // how long the rest of an unfinished one takes is unknown
	}
	n.OutageFrom = "assumed"
	if n.staysUp() {
		n.OutageSeconds, n.OutageFrom = 0, "it needs no reboot"
		return
	}
	for _, of := range n.Peers() {
		var outages, wholes []int
		for _, t := range past {
			stayedUp := t.OutageSeconds == 0 && t.Strategy.KeepsImage()
			if t.Strategy == n.Strategy && !stayedUp && of.Like(t) && len(outages) < Lately {
				outages, wholes = append(outages, t.OutageSeconds), append(wholes, t.WholeSeconds)
			}
		}
		if count := len(outages); count > 0 {
			n.OutageSeconds, n.WholeSeconds = Median(outages), Median(wholes)
			n.OutageFrom = EarlierRolls(count, of.Who)
			return
		}
	}
}

func (n NodePlan) Peers() []peers {
	return []peers{
		{"it", func(t cluster.Took) bool { return t.Node == n.Node }},
		{n.Role + "s", func(t cluster.Took) bool { return t.Role == n.Role }},
	}
}

// peers are nodes whose earlier rolls predict this node's, the best first.
type peers struct {
	Who  string
	Like func(cluster.Took) bool
}

// Lately is how many earlier rolls an estimate is made from.
const Lately = 5

// Median returns the middle value; of two the larger.
func Median(values []int) int {
	slices.Sort(values)
	return values[len(values)/2]
}

// EarlierRolls says, in words, how many rolls an estimate is based on.
func EarlierRolls(rolls int, who string) string {
	if rolls == 1 {
		return "an earlier roll of " + who
	}
	return fmt.Sprintf("%d earlier rolls of %s", rolls, who)
}
