package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/tools/go/packages"
)

const (
	smallFile = 80  // lines of a file that hardly has a subject
	wideLine  = 120 // columns, a tab counts as one
)

// figure is one of the numbers that are printed.
type figure struct {
	name  string
	value int
}

// counts are what figures are made of.
type counts struct {
	product, tests, simulator lines
	functions                 []int // lines of each function of the product
	compared, named           int   // lines that compare a strategy constant, or name one, outside the table
	parts                     int   // types that hold nothing but a pointer to the whole
	rooms                     int   // packages below cluster
	exported, oneUser         int   // names that packages of the product export, and those that one other package uses
}

// lines are those of some files.
type lines struct{ files, lines, small, wide int }

func (l *lines) add(text []byte) {
	n := bytes.Count(text, []byte("\n"))
	l.files++
	l.lines += n
	if n < smallFile {
		l.small++
	}
	for line := range bytes.Lines(text) {
		if utf8.RuneCount(bytes.TrimSuffix(line, []byte("\n"))) > wideLine {
			l.wide++
		}
	}
}

func (c *counts) figures() []figure {
	slices.Sort(c.functions)
	return []figure{
		{"lines of product", c.product.lines},
		{"lines of tests", c.tests.lines},
		{"lines of simulator", c.simulator.lines},
		{"lines that compare a strategy outside the table", c.compared},
		{"lines that name a strategy outside the table", c.named},
		{"types that only point at the whole", c.parts},
		{"rooms of cluster", c.rooms},
		{"functions of product", len(c.functions)},
		{"lines of a function: median", c.share(50)},
		{"lines of a function: p90", c.share(90)},
		{"lines of a function: p99", c.share(99)},
		{"exported names of product", c.exported},
		{"… of those that one other package uses", c.oneUser},
		{"files of product", c.product.files},
		{fmt.Sprintf("… of those under %d lines", smallFile), c.product.small},
		{fmt.Sprintf("lines of product over %d columns", wideLine), c.product.wide},
	}
}

// share is the length that so many hundredths of the functions do not exceed.
func (c *counts) share(hundredths int) int {
	if len(c.functions) == 0 {
		return 0
	}
	return c.functions[(len(c.functions)-1)*hundredths/100]
}

// count reads the module in dir.
func count(dir string) (*counts, error) {
	c := &counts{}
	if err := c.countTests(dir); err != nil {
		return nil, err
	}
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax | packages.NeedDeps | packages.NeedModule, Dir: dir}, "./cmd/...")
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	if packages.PrintErrors(loaded) > 0 {
		return nil, fmt.Errorf("%s does not compile", dir)
	}
	var product []*packages.Package
	packages.Visit(loaded, nil, func(p *packages.Package) {
		if p.Module != nil && p.Module.Main && !strings.Contains(p.PkgPath+"/", "/internal/sim/") {
			product = append(product, p)
		}
	})
	for _, p := range product {
		if err := c.countPackage(p); err != nil {
			return nil, err
		}
	}
	c.countExported(product)
	return c, nil
}

// countTests counts tests and the simulator: of the latter also what only tests use.
func (c *counts) countTests(dir string) error {
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		base := filepath.Base(name)
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != dir && (base == "testdata" || base == "bin" || base == "dist" || base[0] == '.' || base[0] == '_'):
			return fs.SkipDir
		case e.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		in, err := filepath.Rel(dir, name)
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(name, "_test.go"):
			c.tests.add(text)
		case strings.HasPrefix(filepath.ToSlash(in), "internal/sim/"):
			c.simulator.add(text)
		}
		return nil
	})
}

func (c *counts) countPackage(p *packages.Package) error {
	if strings.Contains(p.PkgPath, "/cluster/") {
		c.rooms++
	}
	for _, file := range p.Syntax {
		if ast.IsGenerated(file) {
			continue
		}
		name := p.Fset.Position(file.FileStart).Filename
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		c.product.add(text)
		c.countFunctions(p.Fset, file)
		c.countParts(p, file)
		if !isTable(p, name) {
			c.countStrategies(p, file)
		}
	}
	return nil
}

func (c *counts) countFunctions(fset *token.FileSet, file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			c.functions = append(c.functions, fset.Position(f.End()).Line-fset.Position(f.Pos()).Line+1)
		}
	}
}

// countParts counts structs whose one field is a pointer to another struct of recast.
func (c *counts) countParts(p *packages.Package, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		t, ok := p.TypesInfo.Defs[s.Name].Type().Underlying().(*types.Struct)
		if ok && t.NumFields() == 1 && isWhole(p, t.Field(0).Type()) {
			c.parts++
		}
		return true
	})
}

func isWhole(p *packages.Package, t types.Type) bool {
	pointer, ok := t.(*types.Pointer)
	if !ok {
		return false
	}
	named, ok := pointer.Elem().(*types.Named)
	if !ok || named.Obj().Pkg() == nil || !strings.HasPrefix(named.Obj().Pkg().Path(), p.Module.Path) {
		return false
	}
	_, ok = named.Underlying().(*types.Struct)
	return ok
}

// isTable says whether a file is the one that holds the table of strategies.
func isTable(p *packages.Package, name string) bool {
	return strings.HasSuffix(p.PkgPath, "/cluster") && filepath.Base(name) == "strategies.go"
}

// countStrategies counts the lines that name or compare a constant of the type Strategy. A look-up
// in a map or a list compares, too.
func (c *counts) countStrategies(p *packages.Package, file *ast.File) {
	compared, named := map[int]bool{}, map[int]bool{}
	var path []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			path = path[:len(path)-1]
			return true
		}
		path = append(path, n)
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		constant, ok := p.TypesInfo.Uses[id].(*types.Const)
		if !ok || !isStrategy(constant.Type()) {
			return true
		}
		line := p.Fset.Position(id.Pos()).Line
		named[line] = true
		if compares(path) {
			compared[line] = true
		}
		return true
	})
	c.compared += len(compared)
	c.named += len(named)
}

func isStrategy(t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && named.Obj().Name() == "Strategy" && named.Obj().Pkg() != nil && strings.HasSuffix(named.Obj().Pkg().Path(), "/cluster")
}

// compares says whether the last of path, a constant, is compared with something.
func compares(path []ast.Node) bool {
	at := len(path) - 2
	if _, ok := path[at].(*ast.SelectorExpr); ok { // cluster.Recreate
		at--
	}
	value := path[at+1]
	switch parent := path[at].(type) {
	case *ast.BinaryExpr:
		return parent.Op == token.EQL || parent.Op == token.NEQ
	case *ast.CaseClause:
		return slices.Contains(parent.List, value.(ast.Expr))
	case *ast.IndexExpr:
		return parent.Index == value
	case *ast.KeyValueExpr: // map[Strategy]…{Recreate: …}
		return parent.Key == value
	case *ast.CallExpr: // slices.Contains
		f, ok := parent.Fun.(*ast.SelectorExpr)
		return ok && f.Sel.Name == "Contains"
	}
	return false
}

// countExported counts the names that the packages of the product export, without methods and fields,
// and those that exactly one other package of the product uses.
func (c *counts) countExported(product []*packages.Package) {
	users := map[types.Object]map[*packages.Package]bool{}
	for _, p := range product {
		if p.Name == "main" {
			continue
		}
		for _, name := range p.Types.Scope().Names() {
			if o := p.Types.Scope().Lookup(name); o.Exported() {
				users[o] = map[*packages.Package]bool{}
			}
		}
	}
	for _, p := range product {
		for _, o := range p.TypesInfo.Uses {
			if by, ok := users[o]; ok && o.Pkg() != p.Types {
				by[p] = true
			}
		}
	}
	c.exported = len(users)
	for _, by := range users {
		if len(by) == 1 {
			c.oneUser++
		}
	}
}
