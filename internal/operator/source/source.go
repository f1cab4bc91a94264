// Package source fetches the files of a cluster (recast.yaml, recast.lock, schematics) from the source that a
// TalosCluster names, into a directory.
package source

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/trust"
)

// Limits of the fetched files: the plan of a roll is kept in a ConfigMap together with its files.
const (
	maxFiles    = 2000
	maxFileSize = 8 << 20
)

// Fetch writes the files of a source to the directory into. Files of a ConfigMap are read from its volume, mounted at
// the directory configMap. gitSecret is the directory with the keys of the Secret for Git, if there is one. revision
// is a commit, a digest or, for a ConfigMap, the hash of the contents. files is the hash of the contents in any case:
// it stays the same when a commit changes other directories.
func Fetch(ctx context.Context, src v1alpha1.Source, configMap, gitSecret, into string) (revision, files string, err error) {
	if err := Check(src); err != nil {
		return "", "", err
	}
	root, err := os.OpenRoot(into)
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	out := &target{root: root}
	switch {
	case src.ConfigMap != nil:
		err = out.fromConfigMap(configMap)
	case src.Git != nil:
		revision, err = out.fromGit(ctx, *src.Git, gitSecret)
	case src.OCI != nil:
		revision, err = out.fromOCI(ctx, *src.OCI)
	default:
		return "", "", errors.New("spec.source: names no configMap, git or oci")
	}
	if err != nil {
		return "", "", err
	}
	if _, err := root.Stat("recast.yaml"); errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("%s has no recast.yaml%s", describe(src), out.names())
	}
	files = out.hash()
	return cmp.Or(revision, files), files, nil
}

// Check refuses a source without TLS, unless that is asked for and what is fetched is pinned, and one that names a user
// or a password. The CRD refuses the same, but Helm keeps an older one. No error has the URL: it may hold a password.
func Check(src v1alpha1.Source) error {
	switch {
	case src.Git != nil:
		return checkGit(*src.Git)
	case src.OCI != nil:
		repository, digest, pinned := strings.Cut(src.OCI.Reference, "@")
		switch {
		case pinned && (!strings.HasPrefix(digest, "sha256:") || strings.Contains(digest, "@")):
			return errors.New("spec.source.oci.reference: has a user or a password, or another digest than sha256: put users into the Secret that secretName names")
		case src.OCI.Insecure && !pinned:
			return fmt.Errorf("spec.source.oci.insecure: is without TLS: name the artifact's digest in spec.source.oci.reference (%s@sha256:…)", repository)
		}
	}
	return nil
}

func checkGit(src v1alpha1.GitSource) error {
	at, err := url.Parse(src.URL)
	if err != nil || !slices.Contains([]string{"https", "http", "ssh"}, at.Scheme) {
		return errors.New("spec.source.git.url: use https or ssh: https://… or ssh://…")
	}
	_, password := at.User.Password()
	switch {
	case password || at.User != nil && at.Scheme != "ssh":
		return errors.New("spec.source.git.url: has a user or a password: put them into the Secret that secretName names")
	case at.Scheme == "http" && (!src.Insecure || !plumbing.IsHash(src.Ref)):
		return errors.New("spec.source.git.url: is without TLS: use https or ssh, or set insecure and name the whole hash of a commit in spec.source.git.ref")
	}
	return nil
}

func describe(src v1alpha1.Source) string {
	switch {
	case src.ConfigMap != nil:
		return "ConfigMap " + src.ConfigMap.Name
	case src.Git != nil:
		return strings.TrimSuffix(src.Git.URL+" "+src.Git.Ref+" "+src.Git.Path, " ")
	default:
		return strings.TrimSuffix(src.OCI.Reference+" "+src.OCI.Path, " ")
	}
}

type target struct {
	root  *os.Root
	files []string
	sums  []string // hashes of the files, in the same order
}

// add writes a file. The name is relative, with slashes.
func (t *target) add(name string, r io.Reader) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("%q: is outside of the directory", name)
	}
	if len(t.files) == maxFiles {
		return fmt.Errorf("more than %d files: name the directory with recast.yaml in spec.source", maxFiles)
	}
	if err := t.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	// Every file is executable: gates, hooks and machineConfigs may name any file as a program, and a ConfigMap keeps
	// no modes.
	f, err := t.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(r, maxFileSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n > maxFileSize {
		return fmt.Errorf("%s: is larger than %d MiB", name, maxFileSize>>20)
	}
	t.files, t.sums = append(t.files, name), append(t.sums, fmt.Sprintf("%x", sum.Sum(nil)))
	return nil
}

// hash returns a hash of the names and contents of the files, in any order.
func (t *target) hash() string {
	var lines []string
	for i, name := range t.files {
		lines = append(lines, fmt.Sprintf("%s  %s\n", t.sums[i], name))
	}
	slices.Sort(lines)
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(strings.Join(lines, ""))))
}

// names lists the first few files, for an error.
func (t *target) names() string {
	if len(t.files) == 0 {
		return ": it has no file at all"
	}
	return ", only " + strings.Join(t.files[:min(len(t.files), 5)], ", ")
}

// fromConfigMap copies the files of a mounted ConfigMap. The kubelet puts them in a directory
// ..data, to which the visible names are links.
func (t *target) fromConfigMap(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // sorted by name
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if err := t.copyFile(filepath.Join(dir, e.Name()), strings.ReplaceAll(e.Name(), "__", "/")); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) copyFile(from, name string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return t.add(name, f)
}

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
			return nil // a link or a submodule
		}
		r, err := f.Reader()
		if err != nil {
			return err
		}
		defer r.Close()
		return t.add(f.Name, r)
	})
}

func fetchRef(ctx context.Context, repo *git.Repository, remote *git.Remote, src v1alpha1.GitSource, auth transport.AuthMethod) (plumbing.Hash, error) {
	const local = "refs/recast/wanted"
	fetch := func(ref string, depth int) error {
		return remote.FetchContext(ctx, &git.FetchOptions{RefSpecs: []config.RefSpec{config.RefSpec("+" + ref)}, Depth: depth, Tags: git.NoTags, Auth: auth})
	}
	if plumbing.IsHash(src.Ref) {
		err := fetch(src.Ref+":"+local, 1)
		if errors.Is(err, git.ErrExactSHA1NotSupported) { // not every server serves any commit by its hash
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

// gitAuth reads the keys of a Secret, under Flux' names.
func gitAuth(url, dir string) (transport.AuthMethod, error) {
	keys, names := map[string]string{}, []string{"username", "password"}
	if strings.HasPrefix(url, "ssh://") {
		names = []string{"identity", "known_hosts", "password"}
	}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case dir == "" || errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			keys[name] = strings.TrimRight(string(b), "\n")
		}
	}
	user, password := keys["username"], keys["password"]
	switch {
	case strings.HasPrefix(url, "ssh://"):
	case user == "" && password == "":
		return nil, nil
	default:
		return &http.BasicAuth{Username: user, Password: password}, nil
	}
	if keys["identity"] == "" || keys["known_hosts"] == "" {
		return nil, errors.New("spec.source.git.secretName: ssh needs a Secret with the keys identity and known_hosts")
	}
	endpoint, err := transport.NewEndpoint(url)
	if err != nil {
		return nil, err
	}
	auth, err := ssh.NewPublicKeys(cmp.Or(endpoint.User, "git"), []byte(keys["identity"]+"\n"), password)
	if err != nil {
		return nil, fmt.Errorf("the key identity of the Secret for Git: %w", err)
	}
	auth.HostKeyCallback, err = ssh.NewKnownHostsCallback(filepath.Join(dir, "known_hosts"))
	return auth, err
}

// fluxLayer is the media type of a layer made by flux push artifact, as Flux documents it
// (https://fluxcd.io/flux/cheatsheets/oci-artifacts/).
const fluxLayer = "application/vnd.cncf.flux.content.v1.tar+gzip"

// fromOCI unpacks an artifact. It uses docker's credentials, from the directory in DOCKER_CONFIG.
func (t *target) fromOCI(ctx context.Context, src v1alpha1.OCISource) (string, error) {
	ref, err := name.ParseReference(src.Reference)
	if err != nil {
		return "", fmt.Errorf("spec.source.oci.reference: %w", err)
	}
	var plain []string
	if src.Insecure {
		plain = []string{ref.Context().RegistryStr()}
	}
	encrypted := trust.Encrypted(remote.DefaultTransport, plain)
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(encrypted), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if errors.Is(err, trust.ErrClear) {
		return "", fmt.Errorf("pull %s: %w: set spec.source.oci.insecure if the registry has none, and nobody else is on the way to it", src.Reference, err)
	}
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", src.Reference, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("pull %s: %w", src.Reference, err)
	}
	layer, err := archive(img)
	if err != nil {
		return "", fmt.Errorf("%s: %w", src.Reference, err)
	}
	r, err := layer.Uncompressed()
	if err != nil {
		return "", fmt.Errorf("%s: %w", src.Reference, err)
	}
	defer r.Close()
	if err := t.untar(r, src.Path); err != nil {
		return "", fmt.Errorf("%s: %w", src.Reference, err)
	}
	return digest.String(), nil
}

// archive returns the layer with the files: the first layer of Flux' type, or the only layer.
func archive(img v1.Image) (v1.Layer, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if mt, err := l.MediaType(); err == nil && string(mt) == fluxLayer {
			return l, nil
		}
	}
	if len(layers) != 1 {
		return nil, fmt.Errorf("has %d layers and none of the type %s", len(layers), fluxLayer)
	}
	return layers[0], nil
}

// untar unpacks the regular files below a directory of an archive.
func (t *target) untar(r io.Reader, dir string) error {
	dir = strings.Trim(path.Clean("/"+dir), "/")
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		file := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if dir != "" {
			below, ok := strings.CutPrefix(file, dir+"/")
			if !ok {
				continue
			}
			file = below
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := t.add(file, archive); err != nil {
			return err
		}
	}
}
