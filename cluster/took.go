package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// Took is how long one node's roll took once.
type Took struct {
	Node     string   `json:"node"`
	Role     string   `json:"role"`
	Strategy Strategy `json:"strategy"`
	Talos    string   `json:"talos,omitempty"` // version that it had before
	// OutageSeconds is from the end of its drain to when it was back.
	OutageSeconds int `json:"outageSeconds"`
	// WholeSeconds is from its gate to its end.
	WholeSeconds int            `json:"wholeSeconds"`
	Expected     int            `json:"expectedOutageSeconds,omitempty"` // as its plan had it
	Steps        map[string]int `json:"steps,omitempty"`                 // seconds of those that took any, by path below the node
}

// tookKey is the key of the journal under which a node's Took is.
const tookKey = "/took"

// TookKey is the key of the journal under which a node's Took is kept.
func TookKey(node string) string { return node + tookKey }

// IsTookKey says whether there is a Took under a key of the journal.
func IsTookKey(key string) bool { return strings.HasSuffix(key, tookKey) }

// Lately is how many earlier rolls an estimate is made from.
const Lately = 5

// Estimate expects of the node what its latest rolls by the same strategy took in
// the median, else those of others of its role, else what is assumed.
func (n *NodePlan) Estimate(past []Took) {
	n.OutageSeconds, n.WholeSeconds, n.OutageFrom = int(expectedOutage[n.Strategy].Seconds()), 0, ""
	if n.Strategy == "" || n.Resume {
		return // what is half done takes who knows how long
	}
	n.OutageFrom = "assumed"
	for _, of := range n.Peers() {
		var outages, wholes []int
		for _, t := range past {
			if t.Strategy == n.Strategy && of.Like(t) && len(outages) < Lately {
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

// Median is the middle value; of two the larger.
func Median(values []int) int {
	slices.Sort(values)
	return values[len(values)/2]
}

func (n NodePlan) Peers() []peers {
	return []peers{
		{"it", func(t Took) bool { return t.Node == n.Node }},
		{n.Role + "s", func(t Took) bool { return t.Role == n.Role }},
	}
}

// peers are whose earlier rolls tell something about the node, the best first.
type peers struct {
	Who  string
	Like func(Took) bool
}

func EarlierRolls(rolls int, who string) string {
	if rolls == 1 {
		return "an earlier roll of " + who
	}
	return fmt.Sprintf("%d earlier rolls of %s", rolls, who)
}
