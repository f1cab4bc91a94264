package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// fromGit fetches one commit, without history.
func (t *target) fromGit(ctx context.Context, src v1alpha1.GitSource, credentials string) (string, error) {
	auth, err := gitAuth(src.URL, credentials)
	if err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp("", "git-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	repo, err := git.PlainInit(scratch, true)
	if err != nil {
		return "", err
	}
	remote, err := repo.CreateRemote(&config.RemoteConfig{Name: "origin", URLs: []string{src.URL}})
	if err != nil {
		return "", fmt.Errorf("spec.source.git.url: %w", err)
	}
	hash, err := fetchRef(ctx, repo, remote, src, auth)
	if err != nil {
		return "", err
	}
	commit, err := repo.CommitObject(hash)
	if err != nil {
		return "", fmt.Errorf("%s: commit %s: %w", src.URL, hash, err)
	}
	tree, err := commit.Tree()
	if err == nil && src.Path != "" && src.Path != "." {
		tree, err = tree.Tree(strings.Trim(src.Path, "/"))
	}
	if errors.Is(err, object.ErrDirectoryNotFound) {
		return "", fmt.Errorf("spec.source.git.path: %s %s has no directory %s", src.URL, src.Ref, src.Path)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", src.URL, err)
	}
	return hash.String(), tree.Files().ForEach(func(f *object.File) error {
		if f.Mode != filemode.Regular && f.Mode != filemode.Executable {
			return nil // links and submodules
		}
		r, err := f.Reader()
		if err != nil {
			return err
		}
		defer r.Close()
		return t.add(f.Name, r)
	})
}

// fetchRef fetches the commit that a branch, a tag or a hash names.
func fetchRef(ctx context.Context, repo *git.Repository, remote *git.Remote, src v1alpha1.GitSource, auth transport.AuthMethod) (plumbing.Hash, error) {
	const local = "refs/recast/wanted"
	fetch := func(ref string, depth int) error {
		return remote.FetchContext(ctx, &git.FetchOptions{RefSpecs: []config.RefSpec{config.RefSpec("+" + ref)}, Depth: depth, Tags: git.NoTags, Auth: auth})
	}
	if plumbing.IsHash(src.Ref) {
		err := fetch(src.Ref+":"+local, 1)
		if errors.Is(err, git.ErrExactSHA1NotSupported) { // not every server gives any commit
			err = fetch("refs/*:refs/recast/*", 0)
		}
		if err != nil {
			err = fmt.Errorf("fetch %s %s: %w", src.URL, src.Ref, err)
		}
		return plumbing.NewHash(src.Ref), err
	}
	for _, ref := range []string{"refs/heads/", "refs/tags/"} {
		err := fetch(ref+src.Ref+":"+local, 1)
		if errors.As(err, &git.NoMatchingRefSpecError{}) {
			continue
		}
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("fetch %s %s: %w", src.URL, src.Ref, err)
		}
		hash, err := repo.ResolveRevision(local + "^{commit}") // a tag may be an object of its own
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("%s %s: %w", src.URL, src.Ref, err)
		}
		return *hash, nil
	}
	return plumbing.ZeroHash, fmt.Errorf("spec.source.git.ref: %s has no branch and no tag %q; a commit is named by its whole hash", src.URL, src.Ref)
}

// gitAuth reads the keys of a Secret, by the names that Flux gives them.
func gitAuth(url, dir string) (transport.AuthMethod, error) {
	key := func(name string) (string, error) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if dir == "" || errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return strings.TrimRight(string(b), "\n"), err
	}
	if !strings.HasPrefix(url, "ssh://") {
		user, err := key("username")
		if err != nil {
			return nil, err
		}
		password, err := key("password")
		if err != nil || user == "" && password == "" {
			return nil, err
		}
		return &http.BasicAuth{Username: user, Password: password}, nil
	}
	identity, err := key("identity")
	if err != nil {
		return nil, err
	}
	known, err := key("known_hosts")
	if err != nil {
		return nil, err
	}
	if identity == "" || known == "" {
		return nil, errors.New("spec.source.git.secretName: ssh needs a Secret with the keys identity and known_hosts")
	}
	endpoint, err := transport.NewEndpoint(url)
	if err != nil {
		return nil, err
	}
	password, err := key("password")
	if err != nil {
		return nil, err
	}
	user := endpoint.User
	if user == "" {
		user = "git"
	}
	auth, err := ssh.NewPublicKeys(user, []byte(identity+"\n"), password)
	if err != nil {
		return nil, fmt.Errorf("the key identity of the Secret for Git: %w", err)
	}
	auth.HostKeyCallback, err = ssh.NewKnownHostsCallback(filepath.Join(dir, "known_hosts"))
	return auth, err
}
