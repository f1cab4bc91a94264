package cluster

import (
	"fmt"

	"github.com/recast-sh/recast/internal/words"
)

// Create makes the job again.
func (j ReplicationJob) Create() string {
	command := fmt.Sprintf("pvesr create-local-job %s %s", j.ID, words.OrNone(j.Target))
	if j.Schedule != "" {
		command += " --schedule " + words.Quote(j.Schedule)
	}
	if j.Rate != "" {
		command += " --rate " + j.Rate
	}
	if j.Disabled {
		command += " --disable 1"
	}
	return command
}
