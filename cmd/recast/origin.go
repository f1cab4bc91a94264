package main

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/pipeline/past"
)

// origin says who starts a run, and at which commit of the directory with recast.yaml: as CI systems say it
// (GitHub, GitLab, Gitea and Forgejo name them alike), else as the system and git do.
func origin(ctx context.Context, dir string) past.Origin {
	o := past.Origin{
		Recast: version,
		Who:    cmp.Or(os.Getenv("GITHUB_ACTOR"), os.Getenv("GITLAB_USER_LOGIN")),
		Commit: cmp.Or(os.Getenv("GITHUB_SHA"), os.Getenv("CI_COMMIT_SHA")),
	}
	if me, err := user.Current(); err == nil && o.Who == "" {
		o.Who = me.Username
	}
	if o.Commit == "" {
		o.Commit = commitIn(ctx, dir)
	}
	return o
}

// askGit is how long a run waits for git at most: what it says is only information.
const askGit = 5 * time.Second

// commitIn is the commit that is checked out in a directory, with a plus if files that git knows have
// changed since; "" where there is none.
func commitIn(ctx context.Context, dir string) string {
	out, err := askedGit(ctx, dir, "", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
	if err != nil { // no git, no repository, or it is too slow
		return ""
	}
	return strings.TrimSpace(string(out))
}

// askedGit is what git says of the repository that a directory is in. It asks no remote for what a partial clone lacks: that
// could ask for a password.
func askedGit(ctx context.Context, dir, stdin string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askGit)
	defer cancel()
	git := exec.CommandContext(ctx, "git", append([]string{"-C", dir, "-c", "protocol.allow=never"}, args...)...)
	git.Env, git.Stdin = command.Environ(os.Environ(), nil), strings.NewReader(stdin)
	git.WaitDelay = time.Second // for what it has started and left
	return git.Output()
}
