// Command recast rebuilds the images of a Talos Linux cluster and rolls them through Proxmox VE, one VM at a time. Each
// command is a function, which parses flags, calls package pipeline and prints the result through package ui.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/lab"
	"github.com/recast-sh/recast/internal/telemetry"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

func main() {
	if err := hide(); err != nil {
		fmt.Fprintf(os.Stderr, "warning: other programs of this user can read recast's memory: %v\n", err)
	}
	cobra.EnableCommandSorting = false // --help has them in the order of their use
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &streams{in: stdin, out: stdout, err: &console{Writer: stderr}, interrupts: &interrupts{}}
	ctx, stop := interruptible(context.Background(), s)
	defer stop()
	root := newRootCmd(s)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	code := s.exit(c, err)
	s.telemetry.End(ctx, code, err)
	if p := s.err.pumped(); p != nil {
		p.Drain(ctx) // the last lines say why it failed; a stalled reader may go on until ctx ends
	}
	return code
}

// Exit codes are part of the command-line contract; recast --help shows them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitDiffers     = 2
	exitConfig      = 3
	exitRefused     = 4
	exitClaimed     = 5
	exitInterrupted = 130
)

const exitHelp = `Exit codes:
  0    done, in sync
  1    failed: unreachable, TLS, a task, a timeout; drift: a node could not be read
  2    changes (plan --exit-code, lock --check) or drift found
  3    bad usage or configuration
  4    refused as unsafe
  5    another run holds the claim
  130  interrupted, or not confirmed`

// errDiffers ends a command with exit code 2. The differences are on stdout already.
var errDiffers = errors.New("differs")

// errUnread ends drift with exit code 1.
var errUnread = errors.New("not every node could be read")

// errUsage marks errors about flags and arguments. Their kind is Config, like that of a bad file.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return fault.As(fault.Config, e.error) }

// errOpening marks an error from reading the configuration: the command did nothing yet.
type errOpening struct{ error }

func (e errOpening) Unwrap() error { return e.error }

// exit prints an error of c: what happened, what is safe, what to type next and where
// to read more. It returns the exit code.
func (s *streams) exit(c *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errDiffers) {
		return exitDiffers
	}
	code := exitCodeOf(err)
	if code == exitInterrupted && errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted: %w", err) // otherwise the cancelled operation looks like a failure
	}
	t := ui.Trouble{Err: err, Safe: safeAfter(c, err), Runbook: func(code fault.Code) string {
		return fmt.Sprintf("recast runbook %s (%s)", code, runbooks.URL(string(code)))
	}}
	_ = ui.WriteTrouble(s.err, t) // there is nowhere to report that
	return code
}

func exitCodeOf(err error) int {
	switch fault.KindOf(err) {
	case fault.Config:
		return exitConfig
	case fault.Refused:
		return exitRefused
	case fault.Claimed:
		return exitClaimed
	case fault.Interrupted:
		return exitInterrupted
	case fault.Failed:
		if errors.Is(err, context.Canceled) {
			return exitInterrupted
		}
	}
	return exitFailed
}

const reads = "nothing was changed: this command only reads"

// untouched says what is safe when a command has failed and its error has no text of
// its own for that. A test checks that every command is listed.
var untouched = map[string]string{
	"recast":             "nothing was started",
	"recast adopt":       "nothing in the cluster was changed, and no existing file is overwritten without --force",
	"recast backup":      "the cluster is as it was; a snapshot appears under its name only once it is verified",
	"recast bootstrap":   "etcd begins once, on the named control plane, and nothing of another cluster is touched: run the same command again to continue",
	"recast config":      reads,
	"recast docs":        "no cluster was touched",
	"recast doctor":      reads,
	"recast drift":       reads,
	"recast lab":         "nothing outside the lab was touched",
	"recast lock":        "no node and no VM was touched; recast.lock is unchanged or completely written",
	"recast operator":    reads,
	"recast plan":        reads,
	"recast prune":       "the list above says what is kept and why; nothing is freed that a node, a rollback or an unfinished replacement needs",
	"recast publish":     "no node and no VM was touched; an ISO counts as published only once size and checksum are right",
	"recast rebuild":     "no disk was freed: recast status shows where each one is; etcd begins once, on the named control plane",
	"recast remove":      "no disk was freed but those of a node that --free names: recast status shows where each one is",
	"recast restore":     "no existing data of etcd is ever overwritten, and the snapshot is only read",
	"recast roll":        "no persistent disk was freed: recast status shows where each one is",
	"recast runbook":     reads,
	"recast status":      reads,
	"recast ui":          reads,
	"recast undo":        "no disk was freed: recast status shows where each one is",
	"recast upgrade-k8s": "no VM and no disk was touched; upgraded components stay upgraded",
	"recast version":     reads,
	"recast completion":  reads,
	"recast help":        reads,
	"recast environment": reads,
	"recast exit-codes":  reads,
	"recast history":     reads,
	"recast init":        "nothing in the cluster was changed, and no existing file is overwritten without --force",

	"recast support-bundle": reads,
}

// safeAfter says what is safe after c, or the nearest parent in the list, has failed.
// The kind of error does not matter: a certificate can expire in the middle of a run.
func safeAfter(c *cobra.Command, err error) string {
	_, usage := errors.AsType[errUsage](err)
	_, opening := errors.AsType[errOpening](err)
	if usage || opening {
		return "nothing was changed"
	}
	for ; c != nil; c = c.Parent() {
		if text, known := untouched[c.CommandPath()]; known {
			return text
		}
	}
	return ""
}

func newRunbookCmd(s *streams) *cobra.Command {
	var web bool
	c := &cobra.Command{
		Use: "runbook [CODE]", Short: "Show what to do about an error, by its code",
		Long: `Print the page of an error code: what you see, what it means, what is safe now, how to
check, what to do and, if disks are involved, how to undo it by hand without recast.
Every error ends with its code; logs and JSON have it as "code". Without a code, list
all codes. The pages are built into this program, so this works offline.`,
		Example: `  recast runbook
  recast runbook drain-blocked
  recast runbook parked-half | less`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return cluster.Each(fault.AllCodes(), func(code fault.Code) string { return string(code) }), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listRunbooks(s)
			}
			page, found := runbooks.Page(args[0])
			if !found {
				return fault.WithHint(errUsage{fmt.Errorf("no runbook %q", args[0])}, "recast runbook lists them")
			}
			if web {
				page = runbooks.URL(args[0]) + "\n"
			}
			_, err := fmt.Fprint(s.out, page)
			return err
		},
	}
	c.Flags().BoolVar(&web, "url", false, "print only the URL of the page")
	return c
}

func listRunbooks(s *streams) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, code := range fault.AllCodes() {
		fmt.Fprintf(w, "%s\t%s\n", code, runbooks.Title(string(code)))
	}
	return w.Flush()
}

func newRootCmd(s *streams) *cobra.Command {
	var g globals
	c := &cobra.Command{
		Use: "recast", Short: "Rebuild Talos images and roll them through Proxmox VE",
		Long:          longHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.Version = version
	c.SetVersionTemplate(builtFrom())
	c.Flags().Bool("version", false, "print the version of recast")
	_ = c.Flags().MarkHidden("version") // fails only for an unknown flag; recast version is in the list
	c.SetIn(s.in)
	c.SetOut(s.out)
	c.SetErr(s.err)
	c.PersistentFlags().StringVarP(&g.config, "config", "c", "recast.yaml", "configuration `file`; paths in it are relative to it")
	c.SetFlagErrorFunc(flagError)
	group(c, "Every day:", newLockCmd(s, &g), newPlanCmd(s, &g), newRollCmd(s, &g), newStatusCmd(s, &g), newUICmd(s, &g), newUndoCmd(s, &g), newDriftCmd(s, &g), newHistoryCmd(s, &g))
	group(c, "When something went wrong:", newRunbookCmd(s), newSupportBundleCmd(s, &g), newRestoreCmd(s, &g), newRebuildCmd(s, &g))
	group(c, "Set-up and upkeep:", newInitCmd(s), newAdoptCmd(s), newDoctorCmd(s, &g), newPublishCmd(s, &g), newConfigCmd(s, &g), newUpgradeK8sCmd(s, &g), newBootstrapCmd(s, &g), newRemoveCmd(s, &g),
		newBackupCmd(s, &g), newPruneCmd(s, &g), newOperatorCmd(s), newLabCmd(s), newVersionCmd(s))
	c.SetCompletionCommandGroupID("Set-up and upkeep:")
	c.SetUsageTemplate("{{if .HasParent}}" + c.UsageTemplate() + "{{else}}" + firstScreen + "{{end}}")
	c.AddCommand(newDocsCmd(),
		&cobra.Command{Use: "environment", Short: "Environment variables that recast reads", Long: envHelp},
		&cobra.Command{Use: "exit-codes", Short: "What each exit code means", Long: exitHelp})
	usageErrors(c)
	g.observe(c, s)
	return c
}

func group(root *cobra.Command, title string, list ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range list {
		c.GroupID = title
	}
	root.AddCommand(list...)
}

// flagError names the flag that was meant, if one is close.
func flagError(c *cobra.Command, err error) error {
	hint := c.CommandPath() + " --help"
	if unknown, ok := errors.AsType[interface {
		error
		GetSpecifiedName() string
	}](err); ok {
		var known []string
		add := func(f *pflag.Flag) { known = append(known, f.Name) }
		c.Flags().VisitAll(add)
		c.InheritedFlags().VisitAll(add)
		if meant := words.Closest(unknown.GetSpecifiedName(), known); meant != "" && meant != unknown.GetSpecifiedName() {
			hint = fmt.Sprintf("did you mean --%s?", meant)
		}
	}
	return fault.WithHint(errUsage{err}, "%s", hint)
}

const longHelp = `recast rebuilds the images of a Talos Linux cluster and recreates its nodes from them
in Proxmox VE, with their persistent disks. Every command explains itself with --help;
recast lab demo shows all of it, without hardware.`

const firstScreen = `{{range $group := .Groups}}{{.Title}}
{{range $.Commands}}{{if and .IsAvailableCommand (eq .GroupID $group.ID)}}  {{rpad .Name .NamePadding}} {{.Short}}
{{end}}{{end}}
{{end}}Flags of every command:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}

See also: recast help environment, recast help exit-codes
`

const envHelp = `Environment:
  PROXMOX_VE_API_TOKEN  the Proxmox API token, user@realm!id=uuid (never read from a file)
  PROXMOX_VE_ENDPOINT   URL of the Proxmox API, only for init
  TALOSCONFIG           talosconfig, if recast.yaml names none
  KUBECONFIG            kubeconfig of the cluster (default: ~/.kube/config)
  RECAST_CACHE_DIR      directory of cached boot ISOs (default: .recast/cache)
  DOCKER_CONFIG         directory of config.json, for logins of registries (default: ~/.docker)
  RECAST_POD_NAMESPACE, RECAST_POD_NAME, RECAST_POD_UID  the pod in which recast runs, by
                        the downward API; it may be one of the cluster that is rolled
  GITHUB_TOKEN          used for ghcr.io if no login is stored for it
  NO_COLOR, CLICOLOR_FORCE=1  no colours, or colours even without a terminal
  OTEL_EXPORTER_OTLP_ENDPOINT, other OTEL_ variables, TRACEPARENT  traces, over HTTP`

type globals struct {
	config   string
	log      string
	metrics  string
	progress string
	color    string
}

// usageErrors marks errors of argument checks as usage errors, on every command.
func usageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			if err == nil {
				return nil
			}
			hint := c.CommandPath() + " --help"
			if len(args) > 0 && c.HasSubCommands() {
				if meant := words.Closest(args[0], cluster.Each(c.Commands(), (*cobra.Command).Name)); meant != "" {
					hint = fmt.Sprintf("did you mean %s %s?", c.CommandPath(), meant)
				}
			}
			return fault.WithHint(errUsage{err}, "%s", hint)
		}
	}
	for _, sub := range c.Commands() {
		usageErrors(sub)
	}
}

func (g *globals) observe(root *cobra.Command, s *streams) {
	root.PersistentFlags().StringVar(&g.log, "log-file", "", "append a log to this `file`, as JSON lines")
	root.PersistentFlags().StringVar(&g.metrics, "metrics-file", "", "write metrics to this `file`, for node_exporter")
	root.PersistentFlags().StringVar(&g.progress, "progress", progressAuto, "`how` to show steps: auto (live on a terminal), live, plain or json")
	root.PersistentFlags().StringVar(&g.color, "color", "auto", "`when` to print colours: auto, always or never")
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		if err := errors.Join(requireGiven(c, args), setColours(g.color), s.setProgress(c.CommandPath(), g.progress)); err != nil {
			return err
		}
		if s.telemetry != nil {
			return nil // a command that the demo runs
		}
		t, ctx, err := telemetry.Start(c.Context(), telemetry.Options{
			Command: c.CommandPath(), Version: version, LogFile: g.log, MetricsFile: g.metrics, Env: os.Getenv,
			Warn: s.warn,
		})
		if err != nil {
			return err
		}
		s.telemetry = t
		c.SetContext(ctx)
		return nil
	}
}

// requireGiven refuses an empty flag or argument, such as that of a shell variable that is not set: the command would
// do to all nodes what it was to do to one.
func requireGiven(c *cobra.Command, args []string) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains([]string{"", "[]", `[""]`}, f.Value.String()) {
			err = fault.WithHint(errUsage{fmt.Errorf("--%s is empty", f.Name)}, "is a variable of the shell not set? Else leave the flag out")
		}
	})
	if slices.Contains(args, "") && !c.DisableFlagParsing { // a shell that completes a line gives an empty argument
		err = fault.WithHint(errUsage{errors.New("an argument is empty")}, "is a variable of the shell not set?")
	}
	return err
}

// setColours overrides the environment. It sets the environment variables, so hooks and gates that recast starts
// follow it too.
func setColours(when string) error {
	switch when {
	case "auto":
		return nil
	case "always":
		if err := os.Unsetenv("NO_COLOR"); err != nil {
			return err
		}
		return os.Setenv("CLICOLOR_FORCE", "1")
	case "never":
		return os.Setenv("NO_COLOR", "1")
	}
	return errUsage{fmt.Errorf("--color %q: use auto, always or never", when)}
}

// Set by the linker in releases (.goreleaser.yaml).
var (
	version = "devel"
	commit  = ""
	date    = "" // of the commit
)

func newVersionCmd(s *streams) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of recast", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(s.out, builtFrom())
			return err
		},
	}
}

// builtFrom is the line that recast version prints, and recast --version.
func builtFrom() string {
	built := []string{"commit " + revision()}
	if date != "" {
		built = append(built, date)
	}
	built = append(built, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	return fmt.Sprintf("recast %s (%s)\n", version, strings.Join(built, ", "))
}

func revision() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return "unknown"
}

// newDocsCmd writes the reference page of every command: make docs writes Markdown to
// the repository, a release writes man pages to its archives.
func newDocsCmd() *cobra.Command {
	var dir, out string
	c := &cobra.Command{
		Use: "docs", Short: "Write the command reference", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			root := c.Root()
			root.DisableAutoGenTag = true
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("write the command reference: %w", err)
			}
			if out == "man" {
				return writeManPages(root, dir)
			}
			return doc.GenMarkdownTree(root, dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "docs/reference", "`directory` to write to")
	c.Flags().Var(oneOf(&out, "markdown", "man"), "format", "format of the pages")
	return c
}

// writeManPages writes a page for each command. They are reproducible: their date is the commit's.
func writeManPages(root *cobra.Command, dir string) error {
	header := &doc.GenManHeader{Section: "1", Source: "recast " + version, Manual: "recast"}
	if when, err := time.Parse(time.RFC3339, date); err == nil {
		header.Date = &when
	}
	return doc.GenManTree(root, header, dir)
}

// completeRuns completes the IDs of past runs, each with its command and result.
func (g *globals) completeRuns(_ *cobra.Command, args []string, _ string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
	p, err := g.open()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	runs, _ := p.Runs().All(thisProcess()) // runs that can't be read are not offered
	for _, r := range runs {
		ids = append(ids, cobra.CompletionWithDesc(r.ID, r.Command()+", "+r.Result))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeNodes completes the names of nodes, without those that are arguments already.
func (g *globals) completeNodes(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	p, err := g.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, n := range p.Config.Nodes {
		if !slices.Contains(args, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

type choice struct {
	chosen *string
	of     []string
}

// oneOf makes a flag that takes one of several values. The first value is the default.
func oneOf(chosen *string, of ...string) choice {
	*chosen = of[0]
	return choice{chosen, of}
}

func (c choice) Type() string   { return strings.Join(c.of, "|") }
func (c choice) String() string { return *c.chosen }

func (c choice) Set(value string) error {
	if !slices.Contains(c.of, value) {
		return fmt.Errorf("use one of %s%s", strings.Join(c.of, ", "), words.DidYouMean(value, c.of))
	}
	*c.chosen = value
	return nil
}

func outputFlag(c *cobra.Command, out *string, formats ...string) {
	c.Flags().VarP(oneOf(out, formats...), "output", "o", "output `format`: "+strings.Join(formats, ", "))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

func newLabCmd(s *streams) *cobra.Command {
	return lab.Command(lab.Program{
		Out: s.out, Err: s.err, Differs: errDiffers,
		Run: func(ctx context.Context, args ...string) error {
			root := newRootCmd(s)
			root.SetArgs(args)
			return root.ExecuteContext(ctx)
		},
		Lock: func(ctx context.Context, config string) (map[string]string, error) {
			p, err := (&globals{config: config}).open()
			if err != nil {
				return nil, err
			}
			var cl closers
			defer cl.close()
			images, err := connectImages(s, p, &cl)
			if err != nil {
				return nil, err
			}
			res, err := pipeline.Lock(ctx, p, images, pipeline.LockOptions{Update: true})
			schematics := map[string]string{}
			for name, e := range res.Lock.Schematics {
				schematics[name] = e.Schematic
			}
			return schematics, err
		},
	})
}

func newOperatorCmd(s *streams) *cobra.Command {
	c := &cobra.Command{
		Use: "operator", Short: "Install recast-operator in Kubernetes", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newManifestsCmd(s))
	return c
}

func newManifestsCmd(s *streams) *cobra.Command {
	var o deploy.Options
	c := &cobra.Command{
		Use: "manifests", Short: "Print the Kubernetes objects that recast-operator consists of",
		Long: `Print everything that recast-operator needs as YAML, for kubectl: CRDs, namespace,
access, the Deployment and its network policy. Nothing is read or sent. The same is
available as a Kustomize base and as a Helm chart.`,
		Example: `  recast operator manifests | kubectl apply --server-side -f -
  recast operator manifests --monitoring | kubectl diff --server-side -f -`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.Image == "" && strings.HasPrefix(version, "v") {
				o.Image = deploy.Image + ":" + version
			}
			text, err := deploy.Manifests(o)
			if err != nil {
				return errUsage{err}
			}
			_, err = fmt.Fprint(s.out, text)
			return err
		},
	}
	c.Flags().StringVar(&o.Namespace, "namespace", "recast-system", "`namespace` of the operator")
	c.Flags().StringVar(&o.Image, "image", "", "`image` of the operator and of its Jobs (default: "+deploy.Image+" of the version of this program)")
	c.Flags().StringSliceVar(&o.JobImages, "job-images", nil, "further `images` that spec.job.image of a TalosCluster may name")
	c.Flags().IntVar(&o.Replicas, "replicas", 2, "`number` of pods; one of them works")
	c.Flags().StringVar(&o.NodeLabel, "node-label", "", "`label` of the nodes that run the operator and its Jobs, with any value (default: that of control planes)")
	c.Flags().StringSliceVar(&o.Namespaces, "namespaces", nil, "`namespaces` whose objects the operator looks at, and makes Jobs in (default: its own); they must exist")
	c.Flags().BoolVar(&o.AllNamespaces, "all-namespaces", false, "every namespace: whoever gets at the operator's token can then read every Secret")
	c.Flags().BoolVar(&o.Monitoring, "monitoring", false, "also a PodMonitor, alerts and a Grafana dashboard; needs the CRDs of the Prometheus operator")
	return c
}
