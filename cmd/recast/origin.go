package main

import (
	"cmp"
	"os"
	"os/exec"
	"os/user"
	"strings"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/pipeline"
)

// origin says who starts a run, and at which commit of the directory with recast.yaml: as CI systems say it
// (GitHub, GitLab, Gitea and Forgejo name them alike), else as the system and git do.
func origin(dir string) pipeline.Origin {
	o := pipeline.Origin{
		Recast: version,
		Who:    cmp.Or(os.Getenv("GITHUB_ACTOR"), os.Getenv("GITLAB_USER_LOGIN")),
		Commit: cmp.Or(os.Getenv("GITHUB_SHA"), os.Getenv("CI_COMMIT_SHA")),
	}
	if me, err := user.Current(); err == nil && o.Who == "" {
		o.Who = me.Username
	}
	if o.Commit == "" {
		o.Commit = commitIn(dir)
	}
	return o
}

// commitIn is the commit that is checked out in a directory, with a plus if files that git knows have
// changed since; "" where there is none.
func commitIn(dir string) string {
	git := exec.Command("git", "-C", dir, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
	git.Env = command.Environ(os.Environ(), nil)
	out, err := git.Output()
	if err != nil { // no git, or no repository
		return ""
	}
	return strings.TrimSpace(string(out))
}
