"""What agents may call a fault: a closed list per kind, part of a finding's identity.

Broad on purpose. Two nights must choose the same word for the same fault.
"""

from review_agents.records import Kind

RULES: dict[Kind, tuple[str, ...]] = {
    Kind.CORRECTNESS: ("wrong_result", "wrong_edge_case", "contradicts_itself", "unhandled_input", "correctness_other"),
    Kind.DOCUMENTATION: ("wrong_statement", "wrong_example", "missing_step", "outdated", "documentation_other"),
    Kind.PACKAGING: ("wrong_metadata", "missing_file", "wrong_dependency", "broken_check", "packaging_other"),
    Kind.PERFORMANCE: ("bad_growth", "repeated_work", "excess_memory", "false_claim_of_speed", "performance_other"),
    Kind.RELIABILITY: ("lost_data", "swallowed_error", "leaked_resource", "race", "reliability_other"),
    Kind.SECURITY: ("code_execution", "path_escape", "disclosure", "weak_secret", "reviewer_text", "security_other"),
    Kind.USABILITY: ("misleading_message", "surprising_behaviour", "hard_to_use_right", "usability_other"),
}
ALL_RULES = tuple(rule for rules in RULES.values() for rule in rules)


def fits(kind: Kind, rule: str) -> bool:
    return rule in RULES[kind]
