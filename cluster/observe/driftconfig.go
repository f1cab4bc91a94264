package observe

import (
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// configDiffers is the code of the reason that a node runs another machine configuration than
// talos.machineConfigs has for it.
const configDiffers = "config"

// ConfigReason says, if so, how the node's machine configuration differs.
func (d Drift) ConfigReason() string {
	for _, r := range d.Reasons {
		if r.Code == configDiffers {
			return r.Text
		}
	}
	return ""
}

// diffConfig compares a node's machine configuration. The reason names the first fields that
// differ; the plan and recast config diff show all of them.
func diffConfig(f cluster.FoundFile) (reasons []cluster.Reason, unread []string) {
	switch {
	case f.Err != nil:
		return nil, []string{"its file in talos.machineConfigs can't be compared with what it runs: " + f.Err.Error()}
	case len(f.Changes) == 0 && f.Pending:
		return []cluster.Reason{{Code: configDiffers, Text: "its machine configuration is stored for its next boot, but it does not run it"}}, nil
	case len(f.Changes) == 0:
		return nil, nil
	}
	var fields []string
	whole := "" // the document that is there on one side only
	for _, c := range f.Changes {
		if c.Path == "" {
			whole = c.Document
		} else if c.Document == whole {
			continue
		}
		fields = append(fields, strings.TrimSpace(strings.TrimPrefix(c.Document+" "+c.Path, "v1alpha1 ")))
	}
	const shown = 3
	text := "its machine configuration differs: " + strings.Join(fields[:min(shown, len(fields))], ", ")
	if more := len(fields) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return []cluster.Reason{{Code: configDiffers, Text: text}}, nil
}
