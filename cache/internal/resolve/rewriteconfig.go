package resolve

// RewriteMatch is the way a rewrite rule looks at a name.
type RewriteMatch uint8

// The ways of the rewrite directive.
const (
	RewriteExact RewriteMatch = iota
	RewritePrefix
	RewriteSuffix
	RewriteSubstring
	RewriteRegex
)

// Rewrite is one rule of the rewrite directive for names. From and To are in
// presentation format; with RewriteRegex From is a regular expression and {1} in To
// stands for its first group.
type Rewrite struct {
	Match    RewriteMatch
	From, To string
	// Continue goes on with the next rule after this one applied.
	Continue bool
	// AnswerAuto turns the names in the answer back by the rule reversed. RewriteExact
	// does so anyway.
	AnswerAuto bool
	// AnswerName and AnswerValue change owners and names in the data of the answer.
	AnswerName, AnswerValue []RewritePattern
}

// RewritePattern replaces names that match a regular expression.
type RewritePattern struct{ From, To string }
