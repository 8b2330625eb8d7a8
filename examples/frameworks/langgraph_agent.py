"""LangGraph, a graph of a model and its tools: `ChatOpenAI` calls Chat Completions."""

from typing import Any

from arithmetic import evaluate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import GSM8KReward

app = AgentCoreRLApp()
reward_fn = GSM8KReward()


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression: numbers, + - * / and parentheses."""
    return evaluate(expression)


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    model = ChatOpenAI(model="gpt-5-mini").bind_tools([calculator])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([calculator]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    asked: Any = [("system", "Solve the math problem step by step."), ("user", payload["prompt"])]
    answer = graph.compile().invoke({"messages": asked})["messages"][-1].text
    if "answer" not in payload:  # in production
        return {"response": answer}
    return {"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["answer"])}


if __name__ == "__main__":
    app.run()
